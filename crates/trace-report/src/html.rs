//! The report as one page of HTML: of one run, or of two side by side.

use crate::text::{bytes, called, rate, several, splitting, time};
use crate::{BufferSeen, Group, Lanes, Report};
use forebay_plot_page::{Axis, Cells, Chart, Kind, Mark, Page, Section, Series, Shape, Unit};
use std::collections::BTreeMap;

/// Distributions that are drawn.
const HISTOGRAMS: usize = 10;
/// Fewest calls whose distribution is drawn: that of fewer is chance.
const CHART_CALLS_MIN: u64 = 20;
/// Of fewer calls that take more than so many times the shortest, one peak may be several.
const PEAKS_CALLS: u64 = 100;
const PEAKS_APART: f64 = 1.5;
/// Kinds of calls with fewer that are named.
const FEW_NAMED: usize = 6;
/// Rows of tables.
const ROWS: usize = 20;
/// Charts with the time of the run below show the same moment.
const RUN_TIME: &str = "run";
/// Longest command that is shown.
const COMMAND: usize = 200;

/// A run and what it is called in the page.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its trace says.
    pub report: &'a Report,
}

/// The page.
pub fn html(runs: &[Run<'_>]) -> String {
    let names: Vec<&str> = runs.iter().map(|run| run.name).collect();
    let mut page = Page::new(format!("I/O of {}", names.join(" and ")));
    for run in runs {
        let report = run.report;
        let what = if report.ranks { "ranks" } else { "tasks" };
        let whole = report.commands.first().map_or("", |command| command);
        let mut command: String = whole.chars().take(COMMAND).collect();
        if command.len() < whole.len() {
            command.push('\u{2026}');
        }
        let begin = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        page.fact(format!(
            "{begin}{} {what}, {} on {}, {} from first to last call",
            report.tasks,
            several(report.processes, "process", "processes"),
            several(report.hosts, "host", "hosts"),
            time(report.span_s)
        ));
        if !command.is_empty() {
            page.fact(command);
        }
    }
    for run in runs {
        let title = titled("What stands out", run, runs);
        found(page.section(title), run.report);
    }
    let called: Vec<Run<'_>> = runs.iter().filter(|run| !run.report.is_empty()).copied().collect();
    if !called.is_empty() {
        what_calls_did(&mut page, &called);
    }
    page.footer("Made by forebay report. Drag over a chart to see a part of it, double-click for all. What the words mean: docs/TRACING.md.");
    page.html()
}

/// All that is drawn and counted, of runs that have calls.
fn what_calls_did(page: &mut Page, runs: &[Run<'_>]) {
    totals(page.section("Where the time went"), runs);
    over_time(page, runs);
    distributions(page.section("How long calls take"), runs);
    tasks(page.section("Tasks"), runs);
    for run in runs.iter().filter(|run| !run.report.buffers.is_empty()) {
        let section = page.section(titled("What the buffer did", run, runs));
        run.report.buffers.iter().for_each(|seen| buffer_table(section, seen));
    }
    for run in runs {
        let title = titled("Bursts, and the buffer that the run asks for", run, runs);
        buffer(page.section(title), run.report);
    }
    for run in runs {
        let title = titled("Files", run, runs);
        files(page.section(title), run.report);
    }
}

fn titled(title: &str, run: &Run<'_>, runs: &[Run<'_>]) -> String {
    if runs.len() > 1 { format!("{title}: {}", run.name) } else { title.to_string() }
}

fn found(section: &mut Section, report: &Report) {
    for problem in &report.problems {
        section.warning(format!("Incomplete: {problem}"));
    }
    for note in &report.notes {
        section.text(format!("Note: {note}."));
    }
    if report.is_empty() {
        section.text("The run has no calls on files, so nothing of it is drawn.");
        if report.left_out > 0 {
            section.text(format!(
                "{} left out: of files of the system, pipes and devices. --all-files takes them in.",
                several(report.left_out, "call is", "calls are")
            ));
        }
        return;
    }
    if report.findings.is_empty() {
        section.text("No known fault accounts for 5 % of the time.");
    }
    if let Some(note) = report.hardly_matters() {
        section.text(note);
    }
    for finding in &report.findings {
        let share = 100.0 * finding.share;
        let text = vec![
            finding.evidence.clone(),
            format!(
                "Accounts for about {share:.0} % of {}. Try: {}",
                finding.share_of(),
                finding.advice
            ),
        ];
        section.finding(finding.title.clone(), text, finding.share);
    }
}

fn totals(section: &mut Section, runs: &[Run<'_>]) {
    let compared = runs.len() > 1;
    let of_run = runs.iter().map(|run| {
        let totals = &run.report.totals;
        let kinds = [
            ("read", totals.reads, totals.read_s, Some(totals.read_bytes)),
            ("write", totals.writes, totals.write_s, Some(totals.written_bytes)),
            ("open, names, attributes", totals.metadata_calls, totals.metadata_s, None),
            ("sync", totals.syncs, totals.sync_s, None),
        ];
        kinds.map(|(name, calls, seconds, moved)| {
            let share = 100.0 * seconds / totals.all_s().max(1e-12);
            let mut row = vec![name.to_string()];
            row.extend(compared.then(|| run.name.to_string()));
            let moved = moved.map_or(String::new(), bytes);
            row.extend([calls.to_string(), time(seconds), format!("{share:.0} %"), moved]);
            row
        })
    });
    // The same kind of all runs is one below the other.
    let of_run: Vec<_> = of_run.collect();
    let rows = (0..4).flat_map(|kind| of_run.iter().map(move |rows| rows[kind].clone()));
    let mut heads = vec![""];
    heads.extend(compared.then_some("run"));
    heads.extend(["calls", "time", "share", "bytes"]);
    let caption = "time in calls, all tasks together";
    section.table(caption, &heads, rows.collect());
    if let [one, other] = runs {
        let ratio = |a: f64, b: f64| if a > 0.0 { format!("{:.2}", b / a) } else { "-".into() };
        let (a, b) = (&one.report.totals, &other.report.totals);
        let rows = [
            ("from first to last call", one.report.span_s, other.report.span_s),
            ("in all calls", a.all_s(), b.all_s()),
            ("in reads", a.read_s, b.read_s),
            ("in writes", a.write_s, b.write_s),
            ("in names and attributes", a.metadata_s, b.metadata_s),
            ("in syncs", a.sync_s, b.sync_s),
        ];
        let rows = rows.map(|(name, a, b)| vec![name.into(), time(a), time(b), ratio(a, b)]);
        section.table("side by side", &["time", one.name, other.name, "ratio"], rows.into());
    }
}

/// The time of the run; of several the same axis, from the first begin to the last end.
fn run_time(runs: &[Run<'_>]) -> Axis {
    let begins = runs.iter().map(|run| run.report.lanes.from_s);
    let ends = runs.iter().map(|run| run.report.lanes.from_s + run.report.span_s);
    let (from_s, to_s) = (begins.fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
    Axis::new("time of the run", Unit::Seconds).range(from_s, to_s.max(from_s + 1e-9))
}

/// One of the charts over the time of a run that stand beside those of the other run.
struct OverTime<'a> {
    title: String,
    note: String,
    /// What the y axis shows.
    label: &'static str,
    unit: Unit,
    series: Vec<Series>,
    run: &'a Run<'a>,
}

/// Draws charts that are compared: all have the same axes.
fn draw_over_time(section: &mut Section, charts: Vec<OverTime<'_>>, runs: &[Run<'_>]) {
    let values = charts.iter().flat_map(|chart| &chart.series).flat_map(|series| &series.points);
    let most = values.map(|(_, value)| *value).fold(0.0, f64::max);
    let most = if most > 0.0 { 1.05 * most } else { 1.0 };
    for one in charts {
        let y = Axis::new(one.label, one.unit).range(0.0, most);
        let mut chart = Chart::new(titled(&one.title, one.run, runs), run_time(runs), y);
        let end_s = one.run.report.lanes.from_s + one.run.report.span_s;
        for mut series in one.series {
            // The last step has an end, which the axis need not have.
            if series.points.last().is_some_and(|(at_s, _)| *at_s < end_s) {
                series.points.push((end_s, 0.0));
            }
            chart.series.push(series.shape(Shape::Area));
        }
        (chart.note, chart.together) = (one.note, RUN_TIME.into());
        section.chart(chart);
    }
}

fn over_time(page: &mut Page, runs: &[Run<'_>]) {
    let section = page.section("What each task does when");
    for run in runs {
        if let Some(cells) = lanes(&run.report.lanes, run.report) {
            let (title, x) = (titled("Task by time", run, runs), run_time(runs));
            section.cells(Cells { title, x, ..cells });
        }
    }
    let section = page.section("Over time");
    for run in runs.iter().filter(|run| !run.report.moved_bytes()) {
        section.text(titled("No call moved bytes: no rates are drawn", run, runs));
    }
    let moved = runs.iter().filter(|run| run.report.moved_bytes());
    draw_over_time(section, moved.map(bytes_over_time).collect(), runs);
    draw_over_time(section, runs.iter().map(busy_over_time).collect(), runs);
    let buffers = || runs.iter().flat_map(|run| run.report.buffers.iter().map(move |of| (run, of)));
    let moved = buffers().filter(|(_, seen)| seen.fills.count + seen.drains.count > 0);
    draw_over_time(section, moved.map(fills_and_drains).collect(), runs);
    let stalled = buffers().filter(|(_, seen)| !seen.stalls.is_empty());
    draw_over_time(section, stalled.map(stalls).collect(), runs);
    progress(section, runs);
}

fn bytes_over_time<'a>(run: &'a Run<'a>) -> OverTime<'a> {
    let steps = &run.report.intensity;
    let read = steps.iter().map(|step| (step.at_s, step.read_bytes_per_s)).collect();
    let written = steps.iter().map(|step| (step.at_s, step.written_bytes_per_s)).collect();
    let note = run.report.period.map(|period| {
        let (again, alike) = (time(period.period_s), 100.0 * period.confidence);
        format!("The I/O comes again every {again} ({alike:.0} % alike).")
    });
    OverTime {
        title: "Bytes a second, all tasks".into(),
        note: note.unwrap_or_default(),
        label: "rate",
        unit: Unit::BytesPerSecond,
        series: vec![
            Series::line("read", read).colour(0),
            Series::line("written", written).colour(1),
        ],
        run,
    }
}

fn busy_over_time<'a>(run: &'a Run<'a>) -> OverTime<'a> {
    let busy = run.report.intensity.iter().map(|step| (step.at_s, step.busy_tasks)).collect();
    OverTime {
        title: "Tasks that are in a call".into(),
        note: String::new(),
        label: "number of tasks",
        unit: Unit::Plain,
        series: vec![Series::line("in a call", busy).colour(2)],
        run,
    }
}

/// What a buffer moved, below what the tasks did at the same moments.
fn fills_and_drains<'a>((run, seen): (&'a Run<'a>, &BufferSeen)) -> OverTime<'a> {
    let steps = &seen.over_time;
    let filled = steps.iter().map(|step| (step.at_s, step.filled_bytes_per_s)).collect();
    let drained = steps.iter().map(|step| (step.at_s, step.drained_bytes_per_s)).collect();
    OverTime {
        title: format!("Fills and drains of {}", seen.name),
        note: String::new(),
        label: "rate",
        unit: Unit::BytesPerSecond,
        series: vec![
            Series::line("from the PFS", filled).colour(0),
            Series::line("to the PFS", drained).colour(1),
        ],
        run,
    }
}

/// Who waited for a buffer.
fn stalls<'a>((run, seen): (&'a Run<'a>, &BufferSeen)) -> OverTime<'a> {
    let stalled = seen.over_time.iter().map(|step| (step.at_s, step.stalled)).collect();
    let reasons = seen
        .stalls
        .iter()
        .map(|stall| format!("{} waited {} for {}", stall.count, time(stall.time_s), stall.why));
    OverTime {
        title: format!("Calls that wait for {}", seen.name),
        note: format!("{}.", reasons.collect::<Vec<_>>().join("; ")),
        label: "number of calls",
        unit: Unit::Plain,
        series: vec![Series::line("waiting", stalled).colour(3)],
        run,
    }
}

fn progress(section: &mut Section, runs: &[Run<'_>]) {
    if !runs.iter().any(|run| run.report.moved_bytes()) {
        return;
    }
    let longest = runs.iter().map(|run| run.report.span_s).fold(1e-9, f64::max);
    let mut chart = Chart::new(
        "Progress",
        Axis::new("time since the first call", Unit::Seconds).range(0.0, longest),
        Axis::new("share that is done", Unit::Share).range(0.0, 1.02),
    );
    chart.note =
        "The slope is the rate of all tasks together; a long flat tail is stragglers.".into();
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| run.report.moved_bytes()) {
        let from = run.report.lanes.from_s;
        let name = |what: &str| {
            if runs.len() > 1 { format!("{}: {what}", run.name) } else { what.to_string() }
        };
        let since = |points: &[crate::Progress]| -> Vec<(f64, f64)> {
            let all = points.iter().map(|point| (point.at_s - from, point.share));
            [(0.0, 0.0)].into_iter().chain(all).collect()
        };
        let bytes = Series::line(name("bytes"), since(&run.report.progress)).colour(number);
        chart.series.push(bytes);
        let done = Series::line(name("tasks that are done"), since(&run.report.tasks_done));
        chart.series.push(done.colour(number).shape(Shape::Steps).dashed());
    }
    section.chart(chart);
}

/// What a buffer did, in numbers.
fn buffer_table(section: &mut Section, seen: &BufferSeen) {
    let kinds = [
        ("hits: reads from flash", &seen.hits),
        ("misses: bytes that were missing", &seen.misses),
        ("fills: from the PFS to flash", &seen.fills),
        ("drains: from flash to the PFS", &seen.drains),
        ("evictions", &seen.evictions),
        ("writes taken to flash by the daemon", &seen.absorbed),
    ];
    let row = |(name, kind): (&str, &crate::BufferKind)| {
        vec![
            name.to_string(),
            kind.count.to_string(),
            bytes(kind.bytes),
            time(kind.time_s),
            time(kind.longest_s),
        ]
    };
    let mut rows: Vec<Vec<String>> =
        kinds.into_iter().filter(|(_, kind)| kind.count > 0).map(row).collect();
    rows.extend(seen.stalls.iter().map(|stall| {
        let what = format!("stalls: {}", stall.why);
        vec![
            what,
            stall.count.to_string(),
            String::new(),
            time(stall.time_s),
            time(stall.longest_s),
        ]
    }));
    if seen.kernel_opens > 0 {
        let none = String::new;
        rows.push(vec![
            "opens by the kernel itself".into(),
            seen.kernel_opens.to_string(),
            none(),
            none(),
            none(),
        ]);
    }
    let heads = ["", "count", "bytes", "time", "longest"];
    section.table(format!("{} on {}", seen.name, seen.host), &heads, rows);
}

/// The field of tasks and time: in each cell what took most of it.
fn lanes(lanes: &Lanes, report: &Report) -> Option<Cells> {
    if lanes.rows.is_empty() {
        return None;
    }
    let what = if report.ranks { "rank" } else { "task" };
    let rows = lanes.rows.iter().map(|(first, last)| match first == last {
        true => format!("{what} {first}"),
        false => format!("{what}s {first} to {last}"),
    });
    let cell = |times: &[f32; 5]| -> (u8, f32) {
        let all: f32 = times.iter().sum();
        let most = times.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        (most.map_or(0, |(kind, _)| kind as u8), all.min(1.0))
    };
    let colours = [0, 1, 4, 3, 5];
    let columns = lanes.cells.first().map_or(0, Vec::len);
    Some(Cells {
        title: String::new(),
        note: "A cell has the colour of the kind of call that took most of it, and is the fainter the less of its time was in calls.".into(),
        x: Axis::new("", Unit::Seconds),
        columns: (lanes.from_s, lanes.from_s + lanes.step_s * columns as f64),
        row_label: what.into(),
        rows: rows.collect(),
        kinds: lanes
            .kinds
            .iter()
            .zip(colours)
            .map(|(name, colour)| Kind { name: (*name).into(), colour })
            .collect(),
        cells: lanes.cells.iter().map(|row| row.iter().map(cell).collect()).collect(),
        together: RUN_TIME.into(),
    })
}

/// Seconds in a kind of call, and for each run its calls by bucket (the bits of the bucket's middle).
type Overlaid = (f64, Vec<BTreeMap<u64, u64>>);

/// Histograms over logarithmic axes, modes marked; of two runs the same calls over each other, all phases together.
fn distributions(section: &mut Section, runs: &[Run<'_>]) {
    section.text(
        "Single calls are not reproducible, their distribution is. Separate peaks are separate kinds of service; the few slow calls \
         on the right decide when a phase ends.",
    );
    let few = match runs {
        [run] => of_one_run(section, run.report),
        _ => of_several_runs(section, runs),
    };
    if !few.is_empty() {
        let named = few.iter().take(FEW_NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = match few.len().saturating_sub(FEW_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        section.text(format!(
            "Not drawn, because fewer than {CHART_CALLS_MIN} calls have no shape: {named}{more}."
        ));
    }
}

/// Draws the distributions of a run; the result is what has too few calls.
fn of_one_run(section: &mut Section, report: &Report) -> Vec<String> {
    let (enough, few): (Vec<&Group>, Vec<&Group>) =
        report.groups.iter().partition(|group| group.count >= CHART_CALLS_MIN);
    for group in enough.iter().take(HISTOGRAMS) {
        section.chart(histogram(group));
    }
    let said = |group: &&Group| {
        let (name, calls) = (called(group.call, group.size), calls(group.count));
        format!("{name} in phase {} ({calls}, {})", group.phase, time(group.sum_s))
    };
    few.iter().map(said).collect()
}

fn calls(count: u64) -> String {
    several(count, "call", "calls")
}

/// The same of several runs, over each other.
fn of_several_runs(section: &mut Section, runs: &[Run<'_>]) -> Vec<String> {
    let mut of_calls: BTreeMap<(&str, &str), Overlaid> = BTreeMap::new();
    for (number, run) in runs.iter().enumerate() {
        for group in &run.report.groups {
            let (sum_s, counts) = of_calls
                .entry((group.call, group.size))
                .or_insert_with(|| (0.0, vec![BTreeMap::new(); runs.len()]));
            *sum_s += group.sum_s;
            for (at_s, count) in &group.histogram {
                // Buckets are the same everywhere, so their middles are.
                *counts[number].entry(at_s.to_bits()).or_default() += count;
            }
        }
    }
    let mut of_calls: Vec<_> = of_calls.into_iter().collect();
    of_calls.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let total = |counts: &BTreeMap<u64, u64>| counts.values().sum::<u64>();
    let (enough, few): (Vec<_>, Vec<_>) = of_calls
        .iter()
        .partition(|(_, (_, counts))| counts.iter().any(|of| total(of) >= CHART_CALLS_MIN));
    for ((call, size), (_, counts)) in enough.into_iter().take(HISTOGRAMS) {
        let mut chart = Chart::new(
            called(call, size),
            Axis::new("duration", Unit::Seconds).log(),
            Axis::new("share of calls", Unit::Share).log(),
        );
        // Half of what one call of the longer run is.
        let floor = 0.5 / counts.iter().map(total).max().unwrap_or(1).max(1) as f64;
        let mut left_out = Vec::new();
        for (number, (run, counts)) in runs.iter().zip(counts).enumerate() {
            let all = total(counts);
            let name = format!("{}, {}", run.name, calls(all));
            if all < CHART_CALLS_MIN {
                left_out.push(name);
                continue;
            }
            let share = |count: u64| count as f64 / all as f64;
            let points = counts.iter().map(|(at, count)| (f64::from_bits(*at), share(*count)));
            let series = Series::line(name, outline(points, floor)).shape(Shape::Steps);
            chart.series.push(series.colour(number));
            chart.marks.extend(marks(run.name, number, counts));
        }
        // Words that lie close are put below each other in this order.
        chart.marks.sort_by(|a, b| a.at.total_cmp(&b.at));
        if !left_out.is_empty() {
            chart.note = format!("Too few to be drawn: {}.", left_out.join("; "));
        }
        section.chart(chart);
    }
    let said = |((call, size), (sum_s, counts)): &((&str, &str), Overlaid)| {
        let all: u64 = counts.iter().map(total).sum();
        format!("{} ({}, {})", called(call, size), calls(all), time(*sum_s))
    };
    few.into_iter().map(said).collect()
}

/// Marks at the modes of one of several runs: of all its phases together, so they are found here.
fn marks(name: &str, number: usize, counts: &BTreeMap<u64, u64>) -> Vec<Mark> {
    let mut all = forebay_ensemble::Histogram::default();
    for (at, count) in counts {
        all.add_many((f64::from_bits(*at) * 1e9).round() as u64, *count);
    }
    let found = forebay_ensemble::modes(&all);
    let alone = found.len() == 1;
    let mark = |mode: &forebay_ensemble::Mode| {
        let at = mode.value / 1e9;
        let share = if alone { String::new() } else { format!(" ({:.0} %)", 100.0 * mode.share) };
        Mark { at, text: format!("{name}: {}{share}", time(at)), colour: Some(number) }
    };
    found.iter().map(mark).collect()
}

/// Buckets as steps: each from its lower edge to its upper one, with `floor` beside and between them: on a logarithmic axis
/// nothing can be drawn at zero, and a bucket without an end would not be drawn at all.
fn outline(buckets: impl Iterator<Item = (f64, f64)>, floor: f64) -> Vec<(f64, f64)> {
    let half = (0.5 / f64::from(forebay_ensemble::BUCKETS_PER_OCTAVE)).exp2();
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut end = 0.0;
    for (middle, value) in buckets {
        let begin = middle / half;
        if end == 0.0 {
            points.push((begin / 1.001, floor));
        } else if begin > end * 1.001 {
            points.push((end, floor));
        }
        points.push((begin, value));
        end = middle * half;
    }
    if end > 0.0 {
        points.push((end, floor));
    }
    points
}

fn histogram(group: &Group) -> Chart {
    let mut chart = Chart::new(
        format!("{} in phase {}", called(group.call, group.size), group.phase),
        Axis::new("duration", Unit::Seconds).log(),
        Axis::new("number of calls", Unit::Count).log(),
    );
    let points = group.histogram.iter().map(|(at_s, count)| (*at_s, *count as f64));
    chart.series.push(Series::line("calls", outline(points, 0.5)).shape(Shape::Steps));
    for mode in &group.modes {
        let share = 100.0 * mode.share;
        let meaning = mode.meaning.split(':').next().unwrap_or_default();
        let text = match group.modes.len() {
            1 => time(mode.value_s),
            _ => format!("{} ({share:.0} %) {meaning}", time(mode.value_s)),
        };
        chart.marks.push(Mark { at: mode.value_s, text, colour: None });
    }
    chart.note = format!(
        "{} calls, {} in all; median {}, 99 % within {}, longest {}.",
        group.count,
        time(group.sum_s),
        time(group.p50_s),
        time(group.p99_s),
        time(group.max_s)
    );
    let spread = group.max_s > PEAKS_APART * group.min_s;
    if group.modes.len() == 1 && group.count < PEAKS_CALLS && spread {
        chart.note.push_str(
            " So few calls do not tell whether there are several peaks: the highest is marked.",
        );
    }
    if let Some(slowest) = group.slowest.filter(|slowest| slowest.tasks > 2) {
        chart.note.push_str(&format!(
            " Slowest of {} tasks: {} measured (task {}), {} expected by chance.",
            slowest.tasks,
            time(slowest.measured_s),
            slowest.task,
            time(slowest.predicted_s)
        ));
    }
    if let Some(told) = splitting(group) {
        chart.note.push_str(&format!(" Splitting: {told}."));
    }
    chart
}

fn tasks(section: &mut Section, runs: &[Run<'_>]) {
    let mut chart = Chart::new(
        "Rate of a task",
        Axis::new("share of the tasks", Unit::Share).range(0.0, 1.0),
        Axis::new("rate in calls", Unit::BytesPerSecond),
    );
    chart.note = "The slowest task on the left. Level: all tasks are served alike.".into();
    let mut figures = Vec::new();
    for run in runs {
        let rates = &run.report.task_rates;
        let count = rates.len();
        let at = |number: usize| if count > 1 { number as f64 / (count - 1) as f64 } else { 0.5 };
        let points: Vec<(f64, f64)> =
            rates.iter().enumerate().map(|(number, rate)| (at(number), *rate)).collect();
        let shape = if count < 3 { Shape::Dots } else { Shape::Line };
        chart.series.push(Series::line(run.name, points).shape(shape));
        if let Some(rates) = run.report.rates {
            let name = |what: &str| titled(what, run, runs);
            figures.extend([
                (
                    name("slowest task"),
                    format!("{} (task {})", rate(rates.min), rates.slowest_task),
                ),
                (name("median task"), rate(rates.median)),
                (name("all together"), rate(rates.together)),
            ]);
        }
    }
    if figures.is_empty() {
        section.text("No task moved bytes.");
        return;
    }
    section.figures(figures);
    section.chart(chart);
}

fn buffer(section: &mut Section, report: &Report) {
    if let Some(advice) = &report.advice {
        let stripes = advice.stripe_bytes.map_or("none: files whole on one server".into(), bytes);
        let mut figures = vec![("buffer".to_string(), advice.buffer.to_string())];
        if advice.buffer != "none" {
            figures.extend([
                ("access".into(), advice.access.into()),
                ("stripes".into(), stripes),
                ("capacity".into(), bytes(advice.capacity_bytes)),
            ]);
        }
        if let Some(drain) = advice.drain_bytes_per_s {
            figures.push(("drain at least".into(), rate(drain)));
        }
        section.figures(figures);
        section.text(format!("{}: {}.", advice.buffer, advice.meaning));
        for text in &advice.evidence {
            section.text(format!("\u{2013} {text}"));
        }
    }
    let table = &report.bursts;
    if table.rows.is_empty() {
        section.text("Nothing was written.");
        return;
    }
    let rows = table.rows.iter().take(ROWS).map(|row| {
        vec![
            format!("{} x {}", row.count, bytes(row.burst_bytes)),
            bytes(row.node_bytes),
            rate(row.bytes_per_s),
            row.idle_s.map_or("end of the run".into(), time),
        ]
    });
    let caption = format!(
        "bursts of writes above {}; {} nodes; {} written in all",
        bytes(table.above_bytes),
        table.nodes,
        bytes(table.written_bytes)
    );
    let heads = ["count x size", "size on a node", "rate", "idle after each"];
    section.table(caption, &heads, rows.collect());
}

fn files(section: &mut Section, report: &Report) {
    let rows = report.files.iter().take(ROWS).map(|file| {
        vec![
            file.path.clone(),
            time(file.time_s),
            file.calls.to_string(),
            bytes(file.read_bytes),
            bytes(file.written_bytes),
            file.processes.to_string(),
        ]
    });
    let caption = format!("those with most time, of {}", report.file_count);
    let heads = ["file", "time", "calls", "read", "written", "processes"];
    section.table(caption, &heads, rows.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_drawn_to_its_end() {
        let points = outline([(1.0, 5.0), (16.0, 3.0)].into_iter(), 0.5);
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [0.5, 5.0, 0.5, 3.0, 0.5]);
        assert!(points.is_sorted_by(|a, b| a.0 < b.0), "{points:?}");
        assert!(points[1].0 < 1.0 && points[2].0 > 1.0 && points[4].0 > 16.0, "{points:?}");
        assert!(outline(std::iter::empty(), 0.5).is_empty());
    }
}
