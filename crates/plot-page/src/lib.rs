//! Pages with plots, each one file that asks nothing of the network: text, tables, charts (drawn by uPlot, which the page
//! holds), and fields of coloured cells such as task by time. Used by `forebay report --html`, and made for whatever else
//! shows measurements: pages of this crate have one style, that of the server's page.
//!
//! Invariants: a page is plain without its script (text and tables stand in the document; charts have their data as a table
//! for readers of screens); all text is escaped; a policy in the page forbids it every connection. The size of a page is that
//! of the data given: bound it before.

mod chart;
mod html;
#[cfg(feature = "testing")]
pub mod testing;

pub use chart::{Axis, Cells, Chart, Kind, Mark, Scale, Series, Shape, Unit};

use html::escape;

/// The plotting library, unchanged (assets/uplot): the server's page has it, too.
pub const UPLOT_SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");
/// Its style.
pub const UPLOT_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
/// Our own.
const SCRIPT: &str = include_str!("../assets/page.js");
const STYLE: &str = include_str!("../assets/page.css");

/// A page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    title: String,
    facts: Vec<String>,
    sections: Vec<Section>,
    footer: String,
}

/// A part of a page with a heading.
#[derive(Debug, Clone, Default)]
pub struct Section {
    title: String,
    blocks: Vec<Block>,
}

#[derive(Debug, Clone)]
enum Block {
    Text(String),
    Warning(String),
    /// Title, paragraphs, and a share that is shown as a bar.
    Finding(String, Vec<String>, f64),
    /// Label and value.
    Figures(Vec<(String, String)>),
    /// Caption, heads, rows.
    Table(String, Vec<String>, Vec<Vec<String>>),
    /// Side by side, as many as fit.
    Charts(Vec<Drawn>),
}

#[derive(Debug, Clone)]
enum Drawn {
    Chart(Chart),
    Cells(Cells),
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), ..Page::default() }
    }

    /// A short text in the head of the page.
    pub fn fact(&mut self, text: impl Into<String>) {
        self.facts.push(text.into());
    }

    /// The text at its end.
    pub fn footer(&mut self, text: impl Into<String>) {
        self.footer = text.into();
    }

    /// A new section at its end.
    pub fn section(&mut self, title: impl Into<String>) -> &mut Section {
        self.sections.push(Section { title: title.into(), blocks: Vec::new() });
        let last = self.sections.len() - 1;
        &mut self.sections[last]
    }

    /// The page as HTML.
    pub fn html(&self) -> String {
        let mut out = String::with_capacity(UPLOT_SCRIPT.len() + (64 << 10));
        out.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        out.push_str(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; img-src data:\">\n",
        );
        out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        out.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
        out.push_str(&format!("<title>{}</title>\n", escape(&self.title)));
        out.push_str("<link rel=\"icon\" href=\"data:,\">\n");
        out.push_str(&format!("<style>\n{UPLOT_STYLE}\n{STYLE}</style>\n</head>\n<body>\n"));
        out.push_str(&format!("<header>\n<h1>{}</h1>\n", escape(&self.title)));
        for fact in &self.facts {
            out.push_str(&format!("<span>{}</span>\n", escape(fact)));
        }
        out.push_str("</header>\n<main>\n");
        let mut data = Vec::new();
        for section in &self.sections {
            section.html(&mut out, &mut data);
        }
        out.push_str("</main>\n");
        out.push_str(&format!("<footer>{}</footer>\n", escape(&self.footer)));
        out.push_str("<script type=\"application/json\" id=\"data\">");
        // Nothing in it can end the element.
        out.push_str(&serde_json::Value::Array(data).to_string().replace('<', "\\u003c"));
        out.push_str(&format!("</script>\n<script>{UPLOT_SCRIPT}</script>\n"));
        out.push_str(&format!("<script>\n{SCRIPT}</script>\n</body>\n</html>\n"));
        out
    }
}

impl Section {
    /// A paragraph.
    pub fn text(&mut self, text: impl Into<String>) -> &mut Section {
        self.blocks.push(Block::Text(text.into()));
        self
    }

    /// A paragraph that stands out: something is wrong or missing.
    pub fn warning(&mut self, text: impl Into<String>) -> &mut Section {
        self.blocks.push(Block::Warning(text.into()));
        self
    }

    /// Something found, with its share (0 to 1) of the whole as a bar.
    pub fn finding(
        &mut self,
        title: impl Into<String>,
        text: Vec<String>,
        share: f64,
    ) -> &mut Section {
        self.blocks.push(Block::Finding(title.into(), text, share));
        self
    }

    /// Labels with values.
    pub fn figures(&mut self, figures: Vec<(String, String)>) -> &mut Section {
        self.blocks.push(Block::Figures(figures));
        self
    }

    /// A table. Its first column is text, the others are numbers.
    pub fn table(
        &mut self,
        caption: impl Into<String>,
        heads: &[&str],
        rows: Vec<Vec<String>>,
    ) -> &mut Section {
        let heads = heads.iter().map(|head| (*head).to_string()).collect();
        self.blocks.push(Block::Table(caption.into(), heads, rows));
        self
    }

    /// A chart, beside the one before if there is room.
    pub fn chart(&mut self, chart: Chart) -> &mut Section {
        self.draw(Drawn::Chart(chart))
    }

    /// A field of cells, beside the chart before if there is room.
    pub fn cells(&mut self, cells: Cells) -> &mut Section {
        self.draw(Drawn::Cells(cells))
    }

    fn draw(&mut self, drawn: Drawn) -> &mut Section {
        match self.blocks.last_mut() {
            Some(Block::Charts(charts)) => charts.push(drawn),
            _ => self.blocks.push(Block::Charts(vec![drawn])),
        }
        self
    }

    fn html(&self, out: &mut String, data: &mut Vec<serde_json::Value>) {
        out.push_str(&format!("<section>\n<h2>{}</h2>\n", escape(&self.title)));
        for block in &self.blocks {
            block.html(out, data);
        }
        out.push_str("</section>\n");
    }
}

impl Block {
    fn html(&self, out: &mut String, data: &mut Vec<serde_json::Value>) {
        match self {
            Block::Text(text) => out.push_str(&format!("<p>{}</p>\n", escape(text))),
            Block::Warning(text) => {
                out.push_str(&format!("<p class=\"bad\">{}</p>\n", escape(text)));
            }
            Block::Finding(title, text, share) => {
                let percent = (100.0 * share.clamp(0.0, 1.0)).round();
                out.push_str(&format!(
                    "<article>\n<h3>{}</h3>\n<div class=\"share\" title=\"about {percent} % of the time\">\
                     <div style=\"width:{percent}%\"></div></div>\n",
                    escape(title)
                ));
                for text in text {
                    out.push_str(&format!("<p>{}</p>\n", escape(text)));
                }
                out.push_str("</article>\n");
            }
            Block::Figures(figures) => {
                out.push_str("<dl>\n");
                for (label, value) in figures {
                    let (label, value) = (escape(label), escape(value));
                    out.push_str(&format!("<div><dt>{label}</dt><dd>{value}</dd></div>\n"));
                }
                out.push_str("</dl>\n");
            }
            Block::Table(caption, heads, rows) => html::table(out, caption, heads, rows),
            Block::Charts(charts) => {
                out.push_str("<div class=\"charts\">\n");
                for drawn in charts {
                    let (title, note, json) = match drawn {
                        Drawn::Chart(chart) => (&chart.title, &chart.note, chart.json()),
                        Drawn::Cells(cells) => (&cells.title, &cells.note, cells.json()),
                    };
                    out.push_str(&format!(
                        "<figure data-chart=\"{}\">\n<figcaption>{}</figcaption>\n<div class=\"plot\" role=\"img\" \
                         aria-label=\"{}\"></div>\n<p class=\"note\">{}</p>\n</figure>\n",
                        data.len(),
                        escape(title),
                        escape(&drawn.said()),
                        escape(note)
                    ));
                    data.push(json);
                }
                out.push_str("</div>\n");
            }
        }
    }
}

impl Drawn {
    /// What is drawn, in words.
    fn said(&self) -> String {
        match self {
            Drawn::Chart(chart) => chart.said(),
            Drawn::Cells(cells) => cells.said(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_data_cannot_end_its_element() {
        let evil = "</script><img src=x onerror=alert(1)> & \"quoted\"";
        let mut page = Page::new(evil);
        page.fact(evil);
        let mut chart = Chart::new(evil, Axis::new("x", Unit::Plain), Axis::new("y", Unit::Plain));
        chart
            .series
            .push(Series::line(evil, vec![(0.0, 1.0), (f64::NAN, 2.0), (2.0, f64::INFINITY)]));
        page.section(evil)
            .text(evil)
            .table(evil, &["a", "b"], vec![vec![evil.into(), "1".into()]])
            .chart(chart);
        let html = page.html();
        assert!(!html.contains("<img"), "{html}");
        let scripts = html.matches("</script>").count();
        assert_eq!(scripts, 3, "the data, the library and the page's own");
        assert!(html.contains("default-src 'none'"));
        // Numbers that JSON has no form for are no points.
        let data =
            html.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: serde_json::Value =
            serde_json::from_str(data.unwrap_or_default()).unwrap_or_default();
        assert_eq!(data[0]["x"], serde_json::json!([0.0, 2.0]));
        assert_eq!(data[0]["y"], serde_json::json!([[1.0, null]]));
    }
}
