//! Plots: throughput over threads for each workload, and over held ranges.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::report::{Figure, Report};

const SIZE: (u32, u32) = (960, 600);
const COLORS: [RGBColor; 9] = [
    RGBColor(200, 30, 30),
    RGBColor(30, 30, 30),
    RGBColor(40, 100, 200),
    RGBColor(40, 150, 60),
    RGBColor(200, 130, 0),
    RGBColor(140, 60, 180),
    RGBColor(0, 150, 160),
    RGBColor(120, 120, 120),
    RGBColor(220, 100, 170),
];

/// A curve: a side, and its points.
type Curve = (&'static str, Vec<(f64, f64)>);

/// Writes one plot for every workload, and one for every number of threads over the held ranges.
pub fn write(report: &Report, folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let mut workloads: Vec<&str> = Vec::new();
    for figure in &report.figures {
        if !figure.workload.starts_with("held") && !workloads.contains(&figure.workload.as_str()) {
            workloads.push(&figure.workload);
        }
    }
    for workload in workloads {
        let of: Vec<&Figure> = report.figures.iter().filter(|figure| figure.workload == workload).collect();
        let curves = curves(&of, |figure| figure.threads as f64);
        let file = folder.join(format!("{}.svg", workload.replace(['%', ' '], "-")));
        draw(&file, workload, "threads", &curves)?;
    }
    let mut threads: Vec<usize> = report.figures.iter().map(|figure| figure.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    for threads in threads {
        let held = |figure: &&Figure| figure.threads == threads && figure.workload.starts_with("held");
        let of: Vec<&Figure> = report.figures.iter().filter(held).collect();
        let ranges = |figure: &Figure| figure.workload[5..].parse().unwrap_or(1.0);
        let curves = curves(&of, ranges);
        if !curves.is_empty() {
            let file = folder.join(format!("held-{threads}-threads.svg"));
            let title = format!("among held ranges, {threads} threads");
            draw(&file, &title, "ranges held", &curves)?;
        }
    }
    Ok(())
}

fn curves(figures: &[&Figure], x: impl Fn(&Figure) -> f64) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for figure in figures {
        let point = (x(figure), figure.median_per_second / 1e6);
        match curves.iter_mut().find(|(side, _)| *side == figure.side) {
            Some((_, points)) => points.push(point),
            None => curves.push((figure.side, vec![point])),
        }
    }
    curves
}

/// Both axes are logarithmic: the sides differ by orders of magnitude.
fn draw(file: &Path, title: &str, x_title: &str, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let max_x = points().map(|point| point.0).fold(2.0, f64::max);
    let max_y = points().map(|point| point.1).fold(0.001, f64::max);
    let min_y = points().map(|point| point.1).fold(max_y, f64::min).max(max_y / 1e6);
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d((1.0..max_x).log_scale(), (min_y * 0.8..max_y * 1.25).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 17))
        .x_desc(x_title)
        .y_desc("lock+unlock pairs, millions a second")
        .x_label_formatter(&|x| format!("{x}"))
        .y_label_formatter(&|y| format!("{y}"))
        .draw()?;
    for ((side, points), color) in curves.iter().zip(COLORS) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3))?
            .label(*side)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    // Below the curves, which begin high and end anywhere.
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
