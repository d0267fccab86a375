//! The diagrams, as one SVG: both axes logarithmic, coroutines full, threads dashed.

use super::Line;
use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 50.0;

pub fn svg(lines: &[Line]) -> String {
    let height = (HEIGHT + 2.0 * MARGIN) * lines.len() as f64;
    let width = WIDTH + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' font-family='sans-serif' \
         font-size='11'><rect width='100%' height='100%' fill='white'/>\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let top = (HEIGHT + 2.0 * MARGIN) * number as f64 + MARGIN;
        diagram(&mut svg, line, top);
    }
    svg.push_str("</svg>\n");
    svg
}

fn diagram(svg: &mut String, line: &Line, top: f64) {
    let times = line.points.iter().flat_map(|point| [point.1, point.2]);
    let (low, high) = times.fold((f64::MAX, 1.0), |(low, high), time| (time.min(low), time.max(high)));
    let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let most = line.points.last().map_or(1, |point| point.0).max(2) as f64;
    let x = |number: usize| MARGIN + WIDTH * (number as f64).ln() / most.ln();
    let y = |time: f64| top + HEIGHT * (high - time.log10()) / (high - low);
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<text x='{MARGIN}' y='{}'>{}: µs by N</text>", top - 12.0, line.name);
    for decade in low as i32..=high as i32 {
        let y = y(10f64.powi(decade));
        let right = MARGIN + WIDTH;
        let _ = writeln!(svg, "<line x1='{MARGIN}' y1='{y}' x2='{right}' y2='{y}' stroke='#ddd'/>");
        let _ = writeln!(svg, "<text x='{}' y='{y}' text-anchor='end'>1e{decade}</text>", MARGIN - 4.0);
    }
    for point in &line.points {
        let _ = writeln!(
            svg,
            "<text x='{}' y='{}' text-anchor='middle'>{}</text>",
            x(point.0),
            top + HEIGHT + 14.0,
            point.0
        );
    }
    for (name, dash, column) in [("coroutines", "none", 0), ("threads", "5 4", 1)] {
        let time = |point: &(usize, f64, f64)| if column == 0 { point.1 } else { point.2 };
        let points: Vec<String> =
            line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(time(point)))).collect();
        let color = if column == 0 { "#06c" } else { "#c30" };
        let _ = writeln!(
            svg,
            "<polyline fill='none' stroke='{color}' stroke-dasharray='{dash}' points='{}'/>",
            points.join(" ")
        );
        let at = top + 14.0 + 14.0 * f64::from(column);
        let _ = writeln!(svg, "<text x='{}' y='{at}' fill='{color}'>{name}</text>", MARGIN + 8.0);
    }
}
