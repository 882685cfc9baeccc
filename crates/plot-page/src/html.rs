//! Elements of HTML from text.

/// Text as HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// A table that scrolls by itself where it is wide.
pub fn table(out: &mut String, caption: &str, heads: &[String], rows: &[Vec<String>]) {
    out.push_str("<div class=\"wide\"><table>\n");
    if !caption.is_empty() {
        out.push_str(&format!("<caption>{}</caption>\n", escape(caption)));
    }
    out.push_str("<thead><tr>");
    for head in heads {
        out.push_str(&format!("<th>{}</th>", escape(head)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            out.push_str(&format!("<td>{}</td>", escape(cell)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}
