//! Results as drawings: where an experiment has an axis, a panel of lines for each quantity; where not, bars of ratios.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::record::{Figure, Record, Scale};

const PANEL_WIDTH: u32 = 480;
const PANEL_HEIGHT: u32 = 360;
const BARS_WIDTH: u32 = 900;
const BAR_HEIGHT: u32 = 24;
const BARS_AXIS_HEIGHT: u32 = 60;
const TITLE_HEIGHT: u32 = 36;
const SOURCE_HEIGHT: u32 = 36;
/// The width that a character of a label needs at most.
const CHARACTER_WIDTH: u32 = 8;
const FONT: &str = "sans-serif";

const BETTER: RGBColor = RGBColor(46, 125, 50);
const WORSE: RGBColor = RGBColor(198, 40, 40);
/// Sides, in the order in which a table has them.
const SIDES: [RGBColor; 6] = [
    RGBColor(21, 101, 192),
    RGBColor(239, 108, 0),
    RGBColor(106, 27, 154),
    RGBColor(0, 131, 143),
    RGBColor(158, 157, 36),
    RGBColor(97, 97, 97),
];

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Draws what was measured on one scale.
///
/// # Errors
/// If the file can't be written.
pub fn draw(record: &Record, scale: Scale, path: &Path) -> Result<()> {
    let figures: Vec<&Figure> =
        record.figures.iter().filter(|figure| figure.scale == scale && figure.median.is_some()).collect();
    let drawn = if record.axis.is_some() {
        panels(record, scale, &figures, path)
    } else {
        bars(record, scale, &figures, path)
    };
    drawn.map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// A canvas with the title above and what the drawing was made with below; what is between is returned too.
fn canvas<'a>(
    record: &Record,
    scale: Scale,
    path: &'a Path,
    size: (u32, u32),
) -> std::result::Result<(Canvas<'a>, Canvas<'a>), Box<dyn std::error::Error>> {
    let (width, height) = (size.0, size.1 + TITLE_HEIGHT + SOURCE_HEIGHT);
    let canvas: Canvas<'a> = SVGBackend::new(path, (width, height)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let title = format!("{}: {}", record.experiment, scale.title());
    canvas.draw(&Text::new(title, (12, 10), (FONT, 18)))?;
    let environment = &record.environment;
    let (versions, small) = (&environment.versions, (FONT, 11));
    let qemu = versions.qemu.split(" (").next().unwrap_or_default();
    let rustc = versions.rustc.split(" (").next().unwrap_or_default();
    let lines = [
        format!("{}, {}, commit {}", record.command, environment.date, environment.commit),
        format!("{rustc}; {qemu}; {}; host: {}", environment.linux, environment.host),
    ];
    for (line, text) in (0..).zip(lines) {
        let y = i32::try_from(height - SOURCE_HEIGHT)? + 4 + 15 * line;
        canvas.draw(&Text::new(text, (12, y), small.into_font().color(&BLACK.mix(0.6))))?;
    }
    let inside = canvas.margin(TITLE_HEIGHT, SOURCE_HEIGHT, 0, 0);
    Ok((canvas, inside))
}

/// Names without repetition, as they come.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The sides, the reference last.
fn sides<'a>(record: &Record, figures: &[&'a Figure]) -> Vec<&'a str> {
    let mut sides = distinct(figures.iter().map(|figure| figure.side.as_str()));
    sides.sort_by_key(|side| (*side == record.reference, *side));
    sides
}

fn panels(record: &Record, scale: Scale, figures: &[&Figure], path: &Path) -> Drawn {
    let mut quantities: Vec<&Figure> = Vec::new();
    let is_same = |one: &Figure, other: &Figure| one.name == other.name && one.processors == other.processors;
    for figure in figures.iter().filter(|figure| figure.x.is_some()) {
        if !quantities.iter().any(|other| is_same(figure, other)) {
            quantities.push(figure);
        }
    }
    if quantities.is_empty() {
        return Ok(());
    }
    let has_processors = quantities.iter().any(|figure| figure.processors != quantities[0].processors);
    let columns = if quantities.len() == 1 { 1 } else { 2 };
    let rows = quantities.len().div_ceil(columns);
    let size = (u32::try_from(columns)? * PANEL_WIDTH, u32::try_from(rows)? * PANEL_HEIGHT);
    let (canvas, inside) = self::canvas(record, scale, path, size)?;
    for (quantity, area) in quantities.into_iter().zip(inside.split_evenly((rows, columns))) {
        let own: Vec<&Figure> = figures.iter().filter(|figure| is_same(figure, quantity)).copied().collect();
        let processors =
            if has_processors { format!(", {} CPU", quantity.processors) } else { String::new() };
        let name = format!("{}{processors}", quantity.name);
        panel(record, &name, &own, &sides(record, figures), &area)?;
    }
    canvas.present()?;
    Ok(())
}

/// A line for each side of one quantity.
fn panel(record: &Record, name: &str, figures: &[&Figure], sides: &[&str], area: &Canvas<'_>) -> Drawn {
    let bounds = |value: fn(&Figure) -> Option<f64>| {
        let values = figures.iter().filter_map(|figure| value(figure)).filter(|value| *value > 0.0);
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (x, y) = (bounds(|figure| figure.x), bounds(|figure| figure.median));
    if x.0 > x.1 || y.0 > y.1 {
        return Ok(());
    }
    let unit = figures.first().map_or("", |figure| figure.unit.as_str());
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d((x.0..x.1 * 1.2).log_scale(), (y.0 * 0.7..y.1 * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_desc(record.axis.as_deref().unwrap_or_default())
        .y_desc(unit)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    for (side, color) in sides.iter().zip(SIDES.iter().cycle()) {
        let mut points: Vec<(f64, f64)> = figures
            .iter()
            .filter(|figure| figure.side == *side)
            .filter_map(|figure| Some((figure.x?, figure.median?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let dots = points.iter().map(|point| Circle::new(*point, 3, color.filled())).collect::<Vec<_>>();
        if dots.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(*side)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// How many times as good as the reference each figure is, and a mark where the goal is.
fn bars(record: &Record, scale: Scale, figures: &[&Figure], path: &Path) -> Drawn {
    let mut bars: Vec<(&Figure, f64)> = figures
        .iter()
        .filter(|figure| figure.side != record.reference)
        .filter_map(|figure| Some((*figure, figure.ratio.filter(|ratio| *ratio > 0.0)?)))
        .collect();
    if bars.is_empty() {
        return Ok(());
    }
    // The sides of a figure beside each other, and not in the order in which machines ran.
    let place = |figure: &Figure| figures.iter().position(|other| other.is_comparable(figure));
    bars.sort_by_key(|(figure, _)| (place(figure), figure.side.as_str()));
    let has_sides = sides(record, &bars.iter().map(|bar| bar.0).collect::<Vec<_>>()).len() > 1;
    let has_processors = bars.iter().any(|(figure, _)| figure.processors != bars[0].0.processors);
    let label = |figure: &Figure| {
        let x = figure.x.map_or_else(String::new, |x| format!(" {x}"));
        let side = if has_sides { format!(", {}", figure.side) } else { String::new() };
        let processors = if has_processors { format!(", {} CPU", figure.processors) } else { String::new() };
        format!("{}{x}{side}{processors}", figure.name)
    };
    let longest = bars.iter().map(|(figure, _)| label(figure).chars().count()).max().unwrap_or(0);
    let label_width = u32::try_from(longest)? * CHARACTER_WIDTH;
    let rows = u32::try_from(bars.len())?;
    let size = (BARS_WIDTH, rows * BAR_HEIGHT + BARS_AXIS_HEIGHT);
    let (canvas, inside) = self::canvas(record, scale, path, size)?;
    let goal = |figure: &Figure| record.goals.iter().find_map(|goal| goal.ratio_for(figure));
    // Doublings are equal steps, to the left as to the right.
    let values = bars.iter().flat_map(|(figure, ratio)| [Some(*ratio), goal(figure)]).flatten();
    let (low, high) = values
        .map(f64::log2)
        .fold((-0.5, 0.5), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
    let room = (high - low) * 0.08;
    let mut chart = ChartBuilder::on(&inside)
        .margin(8)
        .margin_left(label_width)
        .x_label_area_size(40)
        .build_cartesian_2d(low - room..high + room, 0.0..f64::from(rows))?;
    let description = format!("times as good as {} (right of 1: better; diamond: goal)", record.reference);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc(description)
        .x_label_formatter(&|log| ratio_text(log.exp2()))
        .light_line_style(WHITE)
        .draw()?;
    for (row, (figure, ratio)) in (1..).zip(&bars) {
        let bottom = f64::from(rows - row);
        let color = if *ratio >= 1.0 { BETTER } else { WORSE };
        let end = ratio.log2();
        let corners = [(end.min(0.0), bottom + 0.15), (end.max(0.0), bottom + 0.85)];
        chart.draw_series([Rectangle::new(corners, color.filled())])?;
        let middle = chart.backend_coord(&(0.0, bottom + 0.5)).1;
        // The plotting area's coordinates are those of the canvas.
        let top = middle - 6;
        canvas.draw(&Text::new(label(figure), (12, top), (FONT, 13)))?;
        let mut text_from = end.max(0.0);
        if let Some(goal) = goal(figure) {
            let x = goal.log2();
            let style = BLACK.filled();
            let diamond =
                |x: i32, y: i32| Polygon::new([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], style);
            let (x_pixel, y_pixel) = chart.backend_coord(&(x, bottom + 0.5));
            canvas.draw(&diamond(x_pixel, y_pixel))?;
            // Not under the mark.
            if (x - text_from).abs() < room {
                text_from = text_from.max(x) + room * 0.15;
            }
        }
        let left = chart.backend_coord(&(text_from, bottom)).0 + 6;
        canvas.draw(&Text::new(ratio_text(*ratio), (left, top), (FONT, 13)))?;
    }
    chart.draw_series(LineSeries::new([(0.0, 0.0), (0.0, f64::from(rows))], BLACK))?;
    canvas.present()?;
    Ok(())
}

fn ratio_text(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") }
}

/// A number as short as a mark on an axis wants it.
fn short(value: f64) -> String {
    for (unit, suffix) in [(1e9, " G"), (1e6, " M"), (1e3, " k")] {
        if value >= unit {
            return format!("{}{suffix}", value / unit);
        }
    }
    format!("{value}")
}
