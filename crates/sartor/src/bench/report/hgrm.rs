//! HdrHistogram's percentile table, which its plotters read.

use hdrhistogram::Histogram;
use std::fmt::Write;

/// Steps for each halving of what is left to 100 %.
const TICKS: u32 = 5;

pub(super) fn text(latencies: &Histogram<u64>) -> String {
    let us = |ns: f64| ns / 1e3;
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut total = 0;
    for step in latencies.iter_quantiles(TICKS) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (us(step.value_iterated_to() as f64), step.quantile_iterated_to());
        let _ = match quantile < 1.0 {
            true => writeln!(text, "{value:12.3} {quantile:2.12} {total:10} {:14.2}", 1.0 / (1.0 - quantile)),
            false => writeln!(text, "{value:12.3} {quantile:2.12} {total:10}"),
        };
    }
    let (mean, deviation) = (us(latencies.mean()), us(latencies.stdev()));
    let (max, count) = (us(latencies.max() as f64), latencies.len());
    let _ = writeln!(text, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(text, "#[Max     = {max:12.3}, Total count    = {count:12}]");
    let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", latencies.buckets(), 2048);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ends_with_all() {
        let mut latencies = Histogram::<u64>::new_with_bounds(64, 1 << 40, 3).unwrap();
        (1..=1000).for_each(|ns| latencies.record(ns * 1000).unwrap());
        let text = text(&latencies);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.contains("Value") && !line.is_empty())
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][2] <= pair[1][2]));
        let last = rows.last().unwrap();
        assert_eq!((last[1], last[2], last.len()), (1.0, 1000.0, 3));
        assert!(text.contains("#[Max"));
    }
}
