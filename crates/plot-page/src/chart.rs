//! What is drawn, as data: charts of series over two axes, and fields of cells.

use serde_json::{Value, json};

/// Unit of an axis: how its numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// As they are.
    Plain,
    /// The same of whole things: a logarithmic axis has no number below 1.
    Count,
    /// Bytes, with binary units.
    Bytes,
    /// Bytes per second, with binary units.
    BytesPerSecond,
    /// Seconds, as ns, us, ms, s, min or h.
    Seconds,
    /// Shares of 1, in percent.
    Share,
}

impl Unit {
    /// What stands behind the name of an axis. Its numbers have the multiples: ms, MiB. Plain numbers count what the name says.
    fn of_axis(self) -> &'static str {
        match self {
            Unit::Plain | Unit::Count => "",
            Unit::Bytes => " (bytes)",
            Unit::BytesPerSecond => " (bytes/s)",
            Unit::Seconds => " (seconds)",
            Unit::Share => " (%)",
        }
    }
}

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal ratios. Values of 0 and less are not drawn.
    Log,
}

/// An axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it shows, without the unit: that is written behind it. Of plain numbers also what is counted.
    pub label: String,
    /// How its numbers are written.
    pub unit: Unit,
    /// Its scale.
    pub scale: Scale,
    /// From where to where it goes, if not as the data.
    pub range: Option<(f64, f64)>,
    /// Where it has numbers, if not at round ones: the values that a person chose.
    pub places: Vec<f64>,
}

impl Axis {
    /// A linear axis.
    pub fn new(label: impl Into<String>, unit: Unit) -> Axis {
        Axis { label: label.into(), unit, scale: Scale::Linear, range: None, places: Vec::new() }
    }

    /// The same, logarithmic.
    pub fn log(mut self) -> Axis {
        self.scale = Scale::Log;
        self
    }

    /// The same, from one value to another.
    pub fn range(mut self, from: f64, to: f64) -> Axis {
        self.range = Some((from, to));
        self
    }

    /// The same with numbers at these places, as far as there is room for them.
    pub fn places(mut self, places: Vec<f64>) -> Axis {
        self.places = places;
        self
    }

    fn json(&self) -> Value {
        let unit = match self.unit {
            Unit::Plain => "plain",
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes_per_s",
            Unit::Seconds => "seconds",
            Unit::Share => "share",
        };
        json!({
            "label": self.label, "title": format!("{}{}", self.label, self.unit.of_axis()), "unit": unit, "log": self.scale == Scale::Log,
            "range": self.range.map(|(from, to)| json!([from, to])), "places": self.places,
        })
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Straight lines from point to point.
    Line,
    /// A value holds until the next point.
    Steps,
    /// Points.
    Dots,
    /// Steps with the area below filled.
    Area,
}

/// A series of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// x and y. Where y is not finite (on a logarithmic axis, not above 0) steps have a gap.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub shape: Shape,
    /// Dashed: what is expected beside what was measured.
    pub dashed: bool,
    /// Number of its colour; by default that of its place in the chart.
    pub colour: Option<usize>,
    /// It does not stand in the legend: the note says what it is.
    pub unlisted: bool,
}

impl Series {
    /// A line.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        let (shape, name) = (Shape::Line, name.into());
        Series { name, points, shape, dashed: false, colour: None, unlisted: false }
    }

    /// The same in another shape.
    pub fn shape(mut self, shape: Shape) -> Series {
        self.shape = shape;
        self
    }

    /// The same, dashed.
    pub fn dashed(mut self) -> Series {
        self.dashed = true;
        self
    }

    /// The same without a place in the legend.
    pub fn unlisted(mut self) -> Series {
        self.unlisted = true;
        self
    }

    /// The same in the colour of this number.
    pub fn colour(mut self, number: usize) -> Series {
        self.colour = Some(number);
        self
    }
}

/// A line across the chart at a place of the x axis, with a word.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// The word.
    pub text: String,
    /// Number of its colour, where it belongs to one of several series.
    pub colour: Option<usize>,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// A sentence below it.
    pub note: String,
    /// The axis below.
    pub x: Axis,
    /// The axis on the left.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Places that are marked.
    pub marks: Vec<Mark>,
    /// As wide as the page.
    pub wide: bool,
    /// Higher than others: lines that lie close are to be told apart.
    pub tall: bool,
    /// Charts with one name here show the same moment under the pointer.
    pub together: String,
}

impl Chart {
    /// An empty chart.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Chart {
        Chart {
            title: title.into(),
            note: String::new(),
            x,
            y,
            series: Vec::new(),
            marks: Vec::new(),
            wide: false,
            tall: false,
            together: String::new(),
        }
    }

    pub(crate) fn said(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|series| series.name.as_str()).collect();
        format!("{}: {} over {}: {}", self.title, self.y.label, self.x.label, names.join(", "))
    }

    /// One array of all x, and for each series one of y or null.
    pub(crate) fn json(&self) -> Value {
        let usable = |axis: &Axis, value: f64| {
            value.is_finite() && (axis.scale == Scale::Linear || value > 0.0)
        };
        let points = |series: &Series| -> Vec<(f64, f64)> {
            series.points.iter().copied().filter(|(x, _)| usable(&self.x, *x)).collect()
        };
        let all: Vec<Vec<(f64, f64)>> = self.series.iter().map(points).collect();
        let mut x: Vec<f64> = all.iter().flatten().map(|(x, _)| *x).collect();
        x.sort_by(f64::total_cmp);
        x.dedup();
        let aligned = all.iter().map(|points| {
            let mut y: Vec<Option<f64>> = vec![None; x.len()];
            for (at, value) in points {
                if let Ok(place) = x.binary_search_by(|known| known.total_cmp(at)) {
                    y[place] = Some(*value).filter(|value| usable(&self.y, *value));
                }
            }
            y
        });
        let y: Vec<Vec<Option<f64>>> = aligned.collect();
        let series: Vec<Value> = self
            .series
            .iter()
            .enumerate()
            .map(|(number, series)| {
                let shape = match series.shape {
                    Shape::Line => "line",
                    Shape::Steps => "steps",
                    Shape::Dots => "dots",
                    Shape::Area => "area",
                };
                json!({
                    "name": series.name, "shape": shape, "dashed": series.dashed,
                    "colour": series.colour.unwrap_or(number), "unlisted": series.unlisted,
                })
            })
            .collect();
        let marks = self.marks.iter();
        let marks: Vec<Value> = marks
            .map(|mark| json!({"at": mark.at, "text": mark.text, "colour": mark.colour}))
            .collect();
        json!({
            "kind": "chart", "axes": [self.x.json(), self.y.json()], "series": series, "x": x, "y": y,
            "marks": marks, "wide": self.wide, "tall": self.tall, "together": self.together,
        })
    }
}

/// What a cell can be.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Its name in the legend.
    pub name: String,
    /// Number of its colour.
    pub colour: usize,
}

/// A field of cells: rows from the top, columns in equal steps of the x axis.
#[derive(Debug, Clone)]
pub struct Cells {
    /// What it shows.
    pub title: String,
    /// A sentence below it.
    pub note: String,
    /// The axis below.
    pub x: Axis,
    /// Begin of the first column and end of the last one: the axis may reach further.
    pub columns: (f64, f64),
    /// What a row is.
    pub row_label: String,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// What cells can be.
    pub kinds: Vec<Kind>,
    /// For each row its cells: what, and how much (0 to 1). Cells with 0 are empty.
    pub cells: Vec<Vec<(u8, f32)>>,
    /// See [`Chart::together`].
    pub together: String,
}

impl Cells {
    pub(crate) fn said(&self) -> String {
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name.as_str()).collect();
        format!(
            "{}: {} rows over {}: {}",
            self.title,
            self.rows.len(),
            self.x.label,
            names.join(", ")
        )
    }

    /// A row is two texts with a character for each cell: what, and how much in 64 steps.
    pub(crate) fn json(&self) -> Value {
        const DIGITS: &[u8; 64] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
        let digit = |value: usize| char::from(DIGITS[value.min(63)]);
        let rows: Vec<Value> = self
            .cells
            .iter()
            .map(|row| {
                let what: String = row.iter().map(|(kind, _)| digit(usize::from(*kind))).collect();
                let much = row.iter().map(|(_, much)| {
                    // What is there at all is seen.
                    if *much > 0.0 { digit(((much * 63.0) as usize).max(1)) } else { '0' }
                });
                json!([what, much.collect::<String>()])
            })
            .collect();
        let kinds: Vec<Value> = self
            .kinds
            .iter()
            .map(|kind| json!({"name": kind.name, "colour": kind.colour}))
            .collect();
        json!({
            "kind": "cells", "axes": [self.x.json()], "row_label": self.row_label, "names": self.rows,
            "columns": [self.columns.0, self.columns.1], "kinds": kinds, "rows": rows, "together": self.together,
        })
    }
}
