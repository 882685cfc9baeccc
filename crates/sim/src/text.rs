//! Tables for terminals.

/// Rows as columns, two blanks apart; the first row is the head. Columns of `right` are set to the right. The last cell of a
/// row that is shorter than the head, such as an error, may be as long as it likes.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let counts = |row: &&Vec<String>| row.len() == columns || column + 1 < row.len();
        let cells = rows.iter().filter(counts).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let blanks = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let (before, after) = if right.contains(&column) {
                (blanks, String::new())
            } else {
                (String::new(), blanks)
            };
            line.push_str(&before);
            line.push_str(cell);
            line.push_str(&after);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Rows as CSV: cells with commas, quotes or line ends in quotes.
pub fn csv(rows: &[Vec<String>]) -> String {
    let cell = |cell: &String| match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_string()).collect()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_but_not_as_an_error() {
        let text = table(
            &rows(&[&["a", "b", "c"], &["long one", "2", "x"], &["y", "this is an error"]]),
            &[1],
        );
        assert_eq!(text, "a         b  c\nlong one  2  x\ny         this is an error\n");
        assert_eq!(csv(&rows(&[&["a,b", "c\"d"]])), "\"a,b\",\"c\"\"d\"\n");
    }
}
