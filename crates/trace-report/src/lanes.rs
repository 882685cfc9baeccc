//! What each task did when: rows of tasks, columns of time, and in each cell how long the task was in which class of call.
//!
//! Invariant: at most [`ROWS`] times [`COLUMNS`] cells, whatever the number of tasks; further tasks share rows.

use foldhash::HashMap;
use forebay_trace_format::Class;
use serde::Serialize;

/// Most rows.
const ROWS: usize = 128;
/// Columns.
const COLUMNS: usize = 320;
/// Classes that are told apart, in the order of [`Lanes::kinds`].
const KINDS: usize = 5;

/// The field.
#[derive(Debug, Clone, Serialize)]
pub struct Lanes {
    /// Begin of the first column, s.
    pub from_s: f64,
    /// Width of a column, s.
    pub step_s: f64,
    /// What the numbers of a cell are of.
    pub kinds: [&'static str; KINDS],
    /// First and last task of each row.
    pub rows: Vec<(u64, u64)>,
    /// For each row, for each column: share of the time of its tasks in each kind of call. In JSON only the columns in which
    /// something happens, each as its number and the shares in thousandths.
    #[serde(serialize_with = "sparse")]
    pub cells: Vec<Vec<[f32; KINDS]>>,
    #[serde(skip)]
    row_of: HashMap<u64, usize>,
    #[serde(skip)]
    tasks_of_row: Vec<u32>,
}

impl Lanes {
    /// An empty field for these tasks.
    pub fn new(mut tasks: Vec<u64>, from_s: f64, to_s: f64) -> Lanes {
        tasks.sort_unstable();
        tasks.dedup();
        let per_row = tasks.len().div_ceil(ROWS).max(1);
        let (mut rows, mut row_of, mut tasks_of_row) = (Vec::new(), HashMap::default(), Vec::new());
        for group in tasks.chunks(per_row) {
            for task in group {
                row_of.insert(*task, rows.len());
            }
            let (first, last) = (group.first().copied(), group.last().copied());
            rows.push((first.unwrap_or(0), last.unwrap_or(0)));
            tasks_of_row.push(group.len() as u32);
        }
        Lanes {
            from_s,
            step_s: ((to_s - from_s) / COLUMNS as f64).max(1e-9),
            kinds: ["read", "write", "open, metadata", "sync", "other"],
            cells: vec![vec![[0.0; KINDS]; COLUMNS]; rows.len()],
            rows,
            row_of,
            tasks_of_row,
        }
    }

    /// Adds a call.
    pub fn add(&mut self, task: u64, class: Class, start_s: f64, duration_s: f64) {
        let Some(row) = self.row_of.get(&task).copied() else { return };
        let kind = match class {
            Class::Read => 0,
            Class::Write => 1,
            Class::Open | Class::Metadata => 2,
            Class::Sync => 3,
            Class::Other | Class::Buffer => 4,
        };
        let tasks = self.tasks_of_row.get(row).copied().unwrap_or(1) as f64;
        let Some(cells) = self.cells.get_mut(row) else { return };
        let begin = (start_s - self.from_s).max(0.0) / self.step_s;
        let end = begin + duration_s / self.step_s;
        let last = (end as usize).min(COLUMNS - 1);
        for (at, cell) in cells.iter_mut().enumerate().take(last + 1).skip(begin as usize) {
            let part = end.min(at as f64 + 1.0) - begin.max(at as f64);
            if let Some(time) = cell.get_mut(kind) {
                *time += (part.max(0.0) / tasks) as f32;
            }
        }
    }
}

fn sparse<S: serde::Serializer>(
    cells: &[Vec<[f32; KINDS]>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let row = |row: &Vec<[f32; KINDS]>| -> Vec<Vec<u32>> {
        let used = row.iter().enumerate().filter(|(_, cell)| cell.iter().any(|time| *time > 0.0));
        let thousandths = |time: &f32| (time * 1e3).round() as u32;
        used.map(|(at, cell)| [at as u32].into_iter().chain(cell.iter().map(thousandths)).collect())
            .collect()
    };
    serializer.collect_seq(cells.iter().map(row))
}
