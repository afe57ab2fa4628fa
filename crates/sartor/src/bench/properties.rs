//! YCSB's properties: `recordcount=1000` on the command line or in files like those YCSB brings along.

use super::plan::{Amount, Plan, distribution};
use sartor_core::workload::keys::Distribution;
use sartor_core::workload::sizes::Sizes;
use std::collections::BTreeMap;
use std::path::Path;

/// What is known.
const KNOWN: &[&str] = &[
    "recordcount",
    "operationcount",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "zipfianconstant",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "fieldcount",
    "fieldlength",
    "fieldlengthdistribution",
    "threadcount",
    "target",
    "maxexecutiontime",
];
/// What changes nothing here: names of classes and tables, how scans are drawn, how YCSB measures.
const IGNORED: &[&str] = &[
    "workload",
    "table",
    "insertorder",
    "orderedinserts",
    "zeropadding",
    "dataintegrity",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "measurementtype",
    "exporter",
    "exportfile",
    "status.interval",
    "readallfields",
];

/// Properties by name; the last of a name counts.
#[derive(Debug, Default, PartialEq)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Of a file, and then of the command line.
    pub fn read(file: Option<&Path>, given: &[String]) -> Result<Properties, String> {
        let mut properties = Properties::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            for line in text.lines().map(str::trim) {
                if !line.is_empty() && !line.starts_with(['#', '!']) {
                    properties.set(line)?;
                }
            }
        }
        for word in given {
            properties.set(word)?;
        }
        Ok(properties)
    }

    fn set(&mut self, line: &str) -> Result<(), String> {
        let wrong = || format!("'{line}' is no property; write name=value");
        let (name, value) = line.split_once('=').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        let ignored = IGNORED.contains(&name) || name.starts_with("hdrhistogram.");
        if name == "writeallfields" && value != "true" {
            return Err("a record is one value here, so writeallfields=false cannot be had".into());
        }
        if !KNOWN.contains(&name) && !ignored && name != "writeallfields" {
            return Err(format!("no property is called '{name}'; there is: {}", KNOWN.join(", ")));
        }
        if !ignored {
            self.0.insert(name.into(), value.into());
        }
        Ok(())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("{name}={value} is not a number"))
    }

    /// Changes the plan as they say.
    pub fn apply(&self, plan: &mut Plan) -> Result<(), String> {
        plan.records = self.number("recordcount")?.unwrap_or(plan.records);
        plan.connections = self.number("threadcount")?.unwrap_or(plan.connections);
        if let Some(rate) = self.number("target")?.filter(|rate| *rate > 0.0) {
            plan.rates = vec![rate];
        }
        if let Some(count) = self.number("operationcount")?.filter(|count| *count > 0) {
            plan.amount = Amount::Requests(count);
        }
        if let Some(seconds) = self.number("maxexecutiontime")?.filter(|seconds| *seconds > 0.0) {
            plan.amount = Amount::Seconds(seconds);
        }
        let shares = [
            "readproportion",
            "updateproportion",
            "insertproportion",
            "scanproportion",
            "readmodifywriteproportion",
        ];
        for (place, name) in shares.iter().enumerate() {
            if let Some(share) = self.number(name)? {
                plan.workload.mix[place] = share;
            }
        }
        self.apply_distribution(plan)?;
        self.apply_sizes(plan)
    }

    fn apply_distribution(&self, plan: &mut Plan) -> Result<(), String> {
        if let Some(name) = self.0.get("requestdistribution") {
            plan.workload.distribution = distribution(name)?;
        }
        let theta = self.number("zipfianconstant")?;
        let hot_records = self.number("hotspotdatafraction")?;
        let hot_requests = self.number("hotspotopnfraction")?;
        match &mut plan.workload.distribution {
            Distribution::Zipfian(old) | Distribution::Latest(old) => *old = theta.unwrap_or(*old),
            Distribution::Hotspot { records, requests } => {
                *records = hot_records.unwrap_or(*records);
                *requests = hot_requests.unwrap_or(*requests);
            }
            Distribution::Uniform | Distribution::Sequential => {}
        }
        Ok(())
    }

    /// A record is one value, as long as all fields together.
    fn apply_sizes(&self, plan: &mut Plan) -> Result<(), String> {
        let count: Option<u32> = self.number("fieldcount")?;
        let length: Option<u32> = self.number("fieldlength")?;
        let kind = self.0.get("fieldlengthdistribution").map_or("constant", String::as_str);
        if (count, length) == (None, None) && kind == "constant" {
            return Ok(());
        }
        let (count, length) = (count.unwrap_or(10), length.unwrap_or(100));
        let most = count.checked_mul(length).ok_or("fieldcount times fieldlength is too much")?;
        plan.workload.value_bytes = match kind {
            "constant" => Sizes::Fixed(most),
            "uniform" => Sizes::Uniform(count, most),
            other => return Err(format!("fieldlengthdistribution={other}: there is constant and uniform")),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_ycsb_writes_them() {
        let path = std::env::temp_dir().join(format!("sartor-properties-{}", std::process::id()));
        let text = "# Workload A\nrecordcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n readproportion = 0.5\n";
        std::fs::write(&path, text).unwrap();
        let properties = Properties::read(Some(&path), &["recordcount=7".into()]).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(properties.number("recordcount"), Ok(Some(7)));
        assert_eq!(properties.number("readproportion"), Ok(Some(0.5)));
        assert_eq!(properties.number::<u64>("operationcount"), Ok(None));
        assert_eq!(properties.0.len(), 2);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let read = |word: &str| Properties::read(None, &[word.into()]);
        assert!(read("recordcout=1").unwrap_err().contains("recordcount"));
        assert!(read("recordcount").unwrap_err().contains("name=value"));
        assert!(read("writeallfields=false").is_err());
        assert_eq!(read("writeallfields=true").unwrap().number::<f64>("target"), Ok(None));
        assert!(read("target=fast").unwrap().number::<f64>("target").is_err());
    }
}
