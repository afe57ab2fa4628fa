//! A plot of lines as SVG.

use super::super::report::grouped;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 6] = ["#1f5fa8", "#c2561a", "#2f8a4c", "#8a3fa0", "#9a7d0a", "#555555"];

/// A line with its name.
pub(super) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A plot.
pub(super) struct Plot {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub lines: Vec<Line>,
    /// Where something happened, and what.
    pub marks: Vec<(f64, String)>,
    /// Values to write at the x axis instead of numbers in between.
    pub ticks: Option<Vec<(f64, String)>>,
    /// Whether y is drawn by its logarithm.
    pub log_y: bool,
    /// Whether points are drawn, too.
    pub dots: bool,
}

impl Plot {
    /// As an SVG element.
    pub fn draw(&self) -> String {
        let axes = Axes::of(self);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><text x=\"{LEFT}\" y=\"15\" class=\"t\">{}</text>",
            escape(&self.title)
        );
        self.draw_axes(&axes, &mut svg);
        for (x, words) in &self.marks {
            let at = axes.x(*x);
            let _ = write!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" class=\"m\"/><text transform=\"translate({:.1},{TOP}) rotate(90)\" class=\"k\">{}</text>",
                HEIGHT - BOTTOM,
                at + 3.0,
                escape(words)
            );
        }
        for (place, line) in self.lines.iter().enumerate() {
            self.draw_line(&axes, line, place, &mut svg);
        }
        svg.push_str("</svg>");
        svg
    }

    fn draw_axes(&self, axes: &Axes, svg: &mut String) {
        let bottom = HEIGHT - BOTTOM;
        for value in axes.y_ticks() {
            let y = axes.y(value);
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"g\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"e\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                short(value)
            );
        }
        let numbers =
            || (0..=5).map(|part| axes.x_at(f64::from(part) / 5.0)).map(|x| (x, short(x))).collect();
        for (value, words) in self.ticks.clone().unwrap_or_else(numbers) {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"c\">{}</text>",
                axes.x(value),
                bottom + 15.0,
                escape(&words)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"c\">{}</text><text x=\"{:.1}\" y=\"15\" class=\"e\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            self.x,
            WIDTH - RIGHT,
            self.y
        );
    }

    fn draw_line(&self, axes: &Axes, line: &Line, place: usize, svg: &mut String) {
        let colour = COLOURS[place % COLOURS.len()];
        let places: Vec<(f64, f64)> = line.points.iter().map(|(x, y)| (axes.x(*x), axes.y(*y))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
            path.join(" ")
        );
        if self.dots {
            for (x, y) in &places {
                let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            LEFT + 10.0,
            TOP + 14.0 * (place as f64 + 1.0),
            escape(&line.name)
        );
    }
}

/// From values to places.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
    log_y: bool,
}

impl Axes {
    fn of(plot: &Plot) -> Axes {
        let all = || plot.lines.iter().flat_map(|line| &line.points);
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (mut x, mut y) = (span(&mut all().map(|point| point.0)), span(&mut all().map(|point| point.1)));
        if x.0 > x.1 {
            (x, y) = ((0.0, 1.0), (0.0, 1.0));
        }
        if plot.log_y {
            y = (10f64.powf(y.0.max(1e-3).log10().floor()), 10f64.powf(y.1.max(1e-2).log10().ceil()));
        } else {
            y = (0.0, y.1 * 1.08);
        }
        let widen = |(low, high): (f64, f64)| if high > low { (low, high) } else { (low, low + 1.0) };
        Axes { x: widen(x), y: widen(y), log_y: plot.log_y }
    }

    fn x(&self, value: f64) -> f64 {
        let part = (value - self.x.0) / (self.x.1 - self.x.0);
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn x_at(&self, part: f64) -> f64 {
        self.x.0 + part * (self.x.1 - self.x.0)
    }

    fn y(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.log_y { value.max(self.y.0).log10() } else { value };
        let part = (scale(value) - scale(self.y.0)) / (scale(self.y.1) - scale(self.y.0));
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn y_ticks(&self) -> Vec<f64> {
        if self.log_y {
            let decades = (self.y.1 / self.y.0).log10().round() as i32;
            return (0..=decades).map(|decade| self.y.0 * 10f64.powi(decade)).collect();
        }
        (0..=4).map(|part| self.y.1 * f64::from(part) / 4.0).collect()
    }
}

/// A number as short as it can be read.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e7 => format!("{:.1} M", value / 1e6),
        value if value >= 100.0 || value == 0.0 => grouped(value),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

/// Text between tags.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, log_y: bool) -> Plot {
        let lines = vec![Line { name: "a<b".into(), points }];
        let marks = vec![(1.0, "killed".into())];
        Plot { title: "t".into(), x: "s", y: "us", lines, marks, ticks: None, log_y, dots: true }
    }

    #[test]
    fn all_places_are_inside() {
        for log_y in [false, true] {
            for points in [vec![], vec![(3.0, 0.0)], vec![(0.0, 1.0), (1.0, 5000.0), (9.0, 20.0)]] {
                let svg = plot(points, log_y).draw();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("a&lt;b") && svg.contains("killed"));
            }
        }
    }

    #[test]
    fn more_is_higher_and_later_is_further_right() {
        let plot = plot(vec![(0.0, 1.0), (10.0, 100.0)], true);
        let axes = Axes::of(&plot);
        assert!(axes.y(100.0) < axes.y(10.0) && axes.y(10.0) < axes.y(1.0));
        assert!(axes.x(10.0) > axes.x(0.0));
        assert_eq!(axes.y_ticks(), [1.0, 10.0, 100.0]);
    }
}
