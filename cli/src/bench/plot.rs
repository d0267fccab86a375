//! Results as drawings: lines over the axis where an experiment has one, bars of ratios where not.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::record::{Figure, Record, Scale};

const WIDTH: u32 = 900;
const LINES_HEIGHT: u32 = 560;
const BAR_HEIGHT: u32 = 26;
const BAR_MARGIN: u32 = 130;
const LABEL_WIDTH: u32 = 230;
const FONT: &str = "sans-serif";

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws what was measured on one scale.
///
/// # Errors
/// If the file can't be written.
pub fn draw(record: &Record, scale: Scale, path: &Path) -> Result<()> {
    let figures: Vec<&Figure> =
        record.figures.iter().filter(|figure| figure.scale == scale && figure.median.is_some()).collect();
    let drawn = if record.axis.is_some() {
        lines(record, scale, &figures, path)
    } else {
        bars(record, scale, &figures, path)
    };
    drawn.map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn title(record: &Record, scale: Scale) -> String {
    format!("{} ({}), {}", record.experiment, scale.name(), record.environment.date)
}

/// The sides that are drawn, by the order of their names.
fn series<'a>(figures: &[&'a Figure]) -> Vec<(&'a str, &'a str)> {
    let mut series: Vec<(&str, &str)> =
        figures.iter().map(|figure| (figure.name.as_str(), figure.side.as_str())).collect();
    series.sort_unstable();
    series.dedup();
    series
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn lines(record: &Record, scale: Scale, figures: &[&Figure], path: &Path) -> Drawn {
    let points = |name: &str, side: &str| {
        let mut points: Vec<(f64, f64)> = figures
            .iter()
            .filter(|figure| figure.name == name && figure.side == side)
            .filter_map(|figure| Some((figure.x?, figure.median?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let bounds = |value: fn(&Figure) -> Option<f64>| {
        let values = figures.iter().filter_map(|figure| value(figure)).filter(|value| *value > 0.0);
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (x, y) = (bounds(|figure| figure.x), bounds(|figure| figure.median));
    if x.0 > x.1 || y.0 > y.1 {
        return Ok(());
    }
    let canvas: Canvas<'_> = SVGBackend::new(path, (WIDTH, LINES_HEIGHT)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let unit = figures.first().map_or("", |figure| figure.unit.as_str());
    let mut chart = ChartBuilder::on(&canvas)
        .caption(title(record, scale), (FONT, 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d((x.0..x.1 * 1.1).log_scale(), (y.0 * 0.8..y.1 * 1.3).log_scale())?;
    chart.configure_mesh().x_desc(record.axis.clone().unwrap_or_default()).y_desc(unit).draw()?;
    for (index, (name, side)) in series(figures).into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        // The reference is dashed by its points being open.
        let filled = side != record.reference;
        chart
            .draw_series(LineSeries::new(points(name, side), color.stroke_width(2)))?
            .label(format!("{name} {side}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        let style = if filled { color.filled() } else { color.stroke_width(1) };
        chart.draw_series(points(name, side).into_iter().map(|point| Circle::new(point, 3, style)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    canvas.present()?;
    Ok(())
}

fn bars(record: &Record, scale: Scale, figures: &[&Figure], path: &Path) -> Drawn {
    let bars: Vec<(&Figure, f64)> = figures
        .iter()
        .filter(|figure| figure.side != record.reference)
        .filter_map(|figure| Some((*figure, figure.ratio.filter(|ratio| *ratio > 0.0)?)))
        .collect();
    if bars.is_empty() {
        return Ok(());
    }
    let rows = u32::try_from(bars.len())?;
    let canvas: Canvas<'_> =
        SVGBackend::new(path, (WIDTH, rows * BAR_HEIGHT + BAR_MARGIN)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (low, high) =
        bars.iter().fold((0.8_f64, 1.25_f64), |(low, high), (_, ratio)| (low.min(*ratio), high.max(*ratio)));
    let mut chart = ChartBuilder::on(&canvas)
        .caption(title(record, scale), (FONT, 18))
        .margin(12)
        .margin_left(LABEL_WIDTH)
        .x_label_area_size(40)
        .build_cartesian_2d((low * 0.9..high * 1.4).log_scale(), 0.0..f64::from(rows))?;
    let description = format!("times as good as {} (right of 1: better)", record.reference);
    chart.configure_mesh().disable_y_mesh().disable_y_axis().x_desc(description).draw()?;
    for (row, (figure, ratio)) in bars.iter().enumerate() {
        let bottom = f64::from(rows - 1 - u32::try_from(row)?);
        let color = if *ratio >= 1.0 { RGBColor(46, 125, 50) } else { RGBColor(198, 40, 40) };
        let corners = [(ratio.min(1.0), bottom + 0.15), (ratio.max(1.0), bottom + 0.85)];
        chart.draw_series([Rectangle::new(corners, color.filled())])?;
        chart.draw_series([Text::new(
            format!("{ratio:.2}"),
            (ratio.max(1.0) * 1.02, bottom + 0.7),
            (FONT, 13),
        )])?;
        let x = figure.x.map_or_else(String::new, |x| format!(" {x}"));
        let label = format!("{}{x} {} ({} CPU)", figure.name, figure.side, figure.processors);
        let y = chart.backend_coord(&(1.0, bottom + 0.7)).1;
        canvas.draw(&Text::new(label, (12, y), (FONT, 13)))?;
    }
    chart.draw_series(LineSeries::new([(1.0, 0.0), (1.0, f64::from(rows))], BLACK))?;
    canvas.present()?;
    Ok(())
}
