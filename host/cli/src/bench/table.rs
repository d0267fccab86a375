//! Results as tables: for the terminal, and for Markdown.

use super::record::{Figure, Record, Scale};

/// The order in which scales are shown.
const SCALES: [Scale; 5] = [Scale::Instructions, Scale::Emulated, Scale::Native, Scale::Size, Scale::Count];

/// All of a record as Markdown, which reads well on a terminal too.
#[must_use]
pub fn render(record: &Record) -> String {
    let environment = &record.environment;
    let versions = &environment.versions;
    let mut text = format!(
        "## {}\n\n`{}`, {}, commit {}; {}; {}; {}; {}; host {}, load {}\n",
        record.experiment,
        record.command,
        environment.date,
        environment.commit,
        versions.rustc,
        versions.qemu,
        versions.libc,
        environment.linux,
        environment.host,
        environment.load,
    );
    for scale in SCALES {
        if record.figures.iter().any(|figure| figure.scale == scale) {
            text += &format!("\nBy {}.\n\n", scale.blind_spot());
            text += &scale_table(record, scale);
        }
    }
    if !record.goals.is_empty() {
        text += "\n| Goal | CPUs | scale | wanted | got | |\n|---|---:|---|---:|---:|---|\n";
        for goal in &record.goals {
            let got = goal.got.map_or_else(|| "-".to_owned(), number);
            let met = if goal.met { "met" } else { "**missed**" };
            let x = goal.x.map_or_else(String::new, |x| format!(" at {x}"));
            text += &format!(
                "| {}{x} | {} | {} | {} | {got} | {met} |\n",
                goal.figure,
                goal.processors,
                goal.scale.name(),
                goal.wanted
            );
        }
    }
    if !record.notes.is_empty() {
        text.push('\n');
        for note in &record.notes {
            text += &format!("- {note}\n");
        }
    }
    text
}

fn scale_table(record: &Record, scale: Scale) -> String {
    let figures: Vec<&Figure> = record.figures.iter().filter(|figure| figure.scale == scale).collect();
    let mut sides: Vec<&str> = Vec::new();
    let mut rows: Vec<&Figure> = Vec::new();
    for &figure in &figures {
        if !sides.contains(&figure.side.as_str()) {
            sides.push(&figure.side);
        }
        if !rows.iter().any(|row| row.is_comparable(figure)) {
            rows.push(figure);
        }
    }
    // Sides in the order of their first appearance depend on the round; ours comes first, the reference last.
    sides.sort_by_key(|side| (*side == record.reference, *side));
    let mut text = String::from("| | CPUs |");
    let mut rule = String::from("|---|---:|");
    for side in &sides {
        text += &format!(" {side} |");
        rule += "---:|";
    }
    text += &format!("\n{rule}\n");
    for row in rows {
        let x = row.x.map_or_else(String::new, |x| format!(" {x}"));
        text += &format!("| {}{x} ({}) | {} |", row.name, row.unit, row.processors);
        for side in &sides {
            let cell = figures.iter().find(|figure| figure.side == *side && figure.is_comparable(row));
            text +=
                &format!(" {} |", cell.map_or_else(|| "-".to_owned(), |figure| cell_text(record, figure)));
        }
        text.push('\n');
    }
    text
}

fn cell_text(record: &Record, figure: &Figure) -> String {
    let Some(median) = figure.median else {
        return figure.absent.clone().unwrap_or_else(|| "-".to_owned());
    };
    let mut text = number(median);
    if let (Some(low), Some(high)) = (figure.low, figure.high)
        && low < high
    {
        text += &format!(" [{} .. {}]", number(low), number(high));
    }
    if let Some(ratio) = figure.ratio
        && figure.side != record.reference
    {
        text += &format!(" **{}x**", number(ratio));
    }
    text
}

/// A number with the digits that mean something.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        value if value >= 100.0 || value == 0.0 => {}
        value_abs if value_abs >= 10.0 => return format!("{value:.1}"),
        _ => return format!("{value:.2}"),
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_what_matters() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(0.0), "0");
    }
}
