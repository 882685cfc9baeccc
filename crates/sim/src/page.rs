//! Pages with plots, for people who decide: of one simulation, of a sweep, of the study's figure, of a sizing.
//! `forebay-plot-page` makes each one file that asks nothing of the network.

use crate::explain::Explanation;
use crate::machine::{Attach, Link, Machine};
use crate::model::Outcome;
use crate::size::{Answer, Sizing, Tried};
use crate::study::Figure;
use crate::sweep::{Point, Sweep};
use crate::units::{digits, format_rate, format_size, format_time, parse_rate};
use forebay_plot_page::{Axis, Chart, Mark, Page, Section, Series, Shape, Unit};

/// What every page ends with.
const FOOTER: &str = "Simulated by forebay sim. How far it may be believed: forebay sim validate, and docs/internals/SIMULATION.md.";

fn assumptions(page: &mut Page, outcome: &Outcome) {
    let (assumed, changed) = (&outcome.assumptions, [&outcome.simplified, &outcome.chosen]);
    if assumed.is_empty() && changed.iter().all(|list| list.is_empty()) {
        return;
    }
    let section = page.section("Assumptions");
    for line in assumed.iter().chain(changed.into_iter().flatten()) {
        section.text(line.clone());
    }
}

/// Throughput and occupancy over time.
fn over_time(section: &mut Section, outcome: &Outcome) {
    let series = &outcome.series;
    let rates = |bytes: &[u64]| -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = bytes
            .iter()
            .enumerate()
            .map(|(at, &bytes)| (at as f64 * series.interval_s, bytes as f64 / series.interval_s))
            .collect();
        // The last step has a width too.
        if let Some(&(_, last)) = points.last() {
            points.push((points.len() as f64 * series.interval_s, last));
        }
        points
    };
    let mut chart = Chart::new(
        "Throughput over time",
        Axis::new("time", Unit::Seconds),
        Axis::new("throughput", Unit::BytesPerSecond),
    );
    chart.wide = true;
    chart.together = "time".into();
    chart.note = format!(
        "As applications see it, and as storage does. Means over {}.",
        format_time(series.interval_s)
    );
    chart
        .series
        .push(Series::line("applications", rates(&series.application_bytes)).shape(Shape::Area));
    chart.series.push(Series::line("storage", rates(&series.storage_bytes)).shape(Shape::Steps));
    section.chart(chart);
    if outcome.buffer.is_some() {
        let mut chart = Chart::new(
            "Data that only buffers have",
            Axis::new("time", Unit::Seconds),
            Axis::new("not on storage", Unit::Bytes),
        );
        chart.wide = true;
        chart.together = "time".into();
        chart.note = "The most of each interval, over all buffers.".into();
        let levels = series.buffered_bytes.iter().enumerate();
        let points =
            levels.map(|(at, &bytes)| (at as f64 * series.interval_s, bytes as f64)).collect();
        chart.series.push(Series::line("not on storage", points).shape(Shape::Area));
        section.chart(chart);
    }
}

/// The figures that a reader looks for first.
fn in_short(outcome: &Outcome) -> Vec<(String, String)> {
    let size = |bytes: u64| format_size(bytes as f64);
    let mut figures = vec![
        ("jobs end at", format_time(outcome.end_s)),
        ("storage has everything at", format_time(outcome.drained_s)),
        ("written", size(outcome.bytes.written)),
        ("read", size(outcome.bytes.read_storage + outcome.bytes.read_buffer)),
    ];
    if let Some(buffer) = &outcome.buffer {
        figures.push(("buffers", format!("{} of {}", buffer.count, size(buffer.capacity_bytes))));
        figures.push(("the fullest was", format!("{} % full", digits(buffer.peak_share * 100.0))));
        figures.push(("writes that found one full", buffer.found_full.to_string()));
    }
    if outcome.bytes.lost > 0 {
        figures.push(("lost with nodes", size(outcome.bytes.lost)));
    }
    figures.into_iter().map(|(label, value)| (label.to_string(), value)).collect()
}

/// A page of one simulation.
pub fn run(explained: &Explanation, machine: &Machine) -> String {
    let outcome = &explained.outcome;
    let mut page = Page::new(format!("{} on {}", outcome.workload, outcome.machine));
    page.fact(format!("jobs end at {}", format_time(outcome.end_s)));
    page.fact(format!("storage has everything at {}", format_time(outcome.drained_s)));
    page.footer(FOOTER);
    let section = page.section("In short");
    section.figures(in_short(outcome));
    over_time(section, outcome);
    let rows = outcome.jobs.iter().flat_map(|job| {
        job.phases.iter().map(move |phase| {
            vec![
                format!("{} / {}", job.name, phase.name),
                format_time(phase.start_s),
                format_time(phase.end_s),
                format_time(phase.io_s),
                format_size(phase.written_bytes as f64),
                format_size(phase.read_bytes as f64),
                format_rate(phase.bytes_per_s),
                format!("{:.0} %", phase.stalled_share * 100.0),
                phase
                    .bound_by
                    .as_ref()
                    .map_or(String::new(), |bound| bound.resource.words().into()),
            ]
        })
    });
    let rows = rows.collect();
    let heads =
        ["phase", "start", "end", "in I/O", "written", "read", "bandwidth", "stalled", "busiest"];
    page.section("Phases").table("", &heads, rows);
    closed_forms(&mut page, explained);
    let rows = outcome.resources.iter().map(|resource| {
        vec![
            resource.resource.words().into(),
            resource.used.to_string(),
            resource.count.to_string(),
            format!("{:.1} %", resource.busy_share * 100.0),
            format_time(resource.mean_wait_s),
        ]
    });
    let rows = rows.collect();
    page.section("Resources").table("", &["resource", "used", "of", "busy", "mean wait"], rows);
    parts(&mut page, machine);
    assumptions(&mut page, outcome);
    page.html()
}

fn closed_forms(page: &mut Page, explained: &Explanation) {
    let rows: Vec<Vec<String>> = explained
        .phases
        .iter()
        .filter_map(|phase| {
            let closed = phase.closed.as_ref()?;
            Some(vec![
                format!("{} / {}", phase.job, phase.phase),
                format_rate(phase.bytes_per_s),
                format_rate(closed.bytes_per_s),
                format!("{:+.1} %", (phase.ratio.unwrap_or(1.0) - 1.0) * 100.0),
                closed.bound_by.clone(),
            ])
        })
        .collect();
    if !rows.is_empty() {
        let heads = ["phase", "simulated", "closed form", "difference", "bound by"];
        page.section("Beside the closed form").table("", &heads, rows);
    }
}

/// A page of the study's figure.
pub fn figure(figure: &Figure, machine: &Machine) -> String {
    let mut page = Page::new("Write bandwidth against processes, Intrepid 2011");
    page.fact("4 MiB writes, 64 MiB each process, a file each");
    page.footer(FOOTER);
    let section = page.section("Bandwidth that processes see");
    let steps: Vec<f64> = crate::study::steps().into_iter().map(f64::from).collect();
    let mut chart = Chart::new(
        "Simulated (points) and by the closed form (lines)",
        Axis::new("number of processes", Unit::Plain).log().places(steps),
        Axis::new("bandwidth", Unit::BytesPerSecond).log(),
    );
    (chart.wide, chart.tall) = (true, true);
    chart.note = "All of the storage system (128 servers) and half of it, without buffers, with 4 GiB and with 16.5 GiB on each of 640 I/O nodes. \
                  With 16.5 GiB, where each burst fits, half of the storage is as good as all of it: their points lie on each other.".into();
    let of = |system: &str, closed: bool| -> Vec<(f64, f64)> {
        let points = figure.points.iter().filter(|point| point.system == system);
        points
            .map(|p| {
                (f64::from(p.processes), if closed { p.closed_bytes_per_s } else { p.bytes_per_s })
            })
            .collect()
    };
    let systems = figure.systems();
    for (number, system) in systems.iter().enumerate() {
        let name = format!("{system}, closed form");
        chart.series.push(Series::line(name, of(system, true)).colour(number).unlisted());
    }
    for (number, system) in systems.iter().enumerate() {
        let series = Series::line(system.clone(), of(system, false));
        chart.series.push(series.colour(number).shape(Shape::Dots));
    }
    section.chart(chart);
    let mut heads = vec!["processes"];
    heads.extend(systems.iter().map(String::as_str));
    let rows = figure.rows(true);
    page.section("Figures").table("GiB/s", &heads, rows.into_iter().skip(1).collect());
    parts(&mut page, machine);
    let section = page.section("Assumptions");
    machine.assumptions.iter().for_each(|line| {
        section.text(line.clone());
    });
    page.html()
}

/// A value of a range as a number, and what it is a number of. None: a word.
fn quantity(text: &str) -> Option<(f64, Unit)> {
    if let Ok(number) = text.parse() {
        return Some((number, Unit::Plain));
    }
    if let Some(rate) = parse_rate(text) {
        return Some((rate, Unit::BytesPerSecond));
    }
    let bytes = forebay_proto::size::parse_bytes(text).ok()?;
    Some((bytes as f64, Unit::Bytes))
}

/// The axis of a key's values.
fn axis_of(key: &str, values: &[(f64, Unit)]) -> Axis {
    let unit = values.first().map_or(Unit::Plain, |(_, unit)| *unit);
    let mut places: Vec<f64> = values.iter().map(|(value, _)| *value).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let axis = Axis::new(key, unit).places(places);
    let least = values.iter().map(|(value, _)| *value).fold(f64::INFINITY, f64::min);
    let most = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
    // Ranges that multiply reach far; ranges that add do not.
    if least > 0.0 && most / least >= FAR { axis.log() } else { axis }
}

/// From this ratio of the largest to the smallest value on an axis is logarithmic.
const FAR: f64 = 8.0;

/// What a chart shows of a point.
type Shown = fn(&Point) -> f64;

/// Bandwidth and time against the first key, a line for each combination of the other ones.
fn against_first_key(page: &mut Page, swept: &Sweep) {
    let Some(key) = swept.keys.first() else { return };
    let values: Option<Vec<(f64, Unit)>> =
        swept.points.iter().map(|point| quantity(point.values.first()?)).collect();
    let Some(values) = values else { return };
    if values.iter().any(|(_, unit)| *unit != values[0].1) {
        return;
    }
    let axis = axis_of(key, &values);
    let section = page.section(format!("Against {key}"));
    let charts: [(&str, Unit, Shown); 2] = [
        ("Bandwidth", Unit::BytesPerSecond, |point| point.bytes_per_s),
        ("Time until the jobs end", Unit::Seconds, |point| point.end_s),
    ];
    for (title, unit, of) in charts {
        let mut chart = Chart::new(title, axis.clone(), Axis::new(title, unit));
        for (point, (value, _)) in swept.points.iter().zip(&values) {
            if point.error.is_some() {
                continue;
            }
            let others = swept.keys.iter().zip(&point.values).skip(1);
            let mut name =
                others.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ");
            if name.is_empty() {
                name = title.to_lowercase();
            }
            match chart.series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((*value, of(point))),
                None => chart.series.push(Series::line(name, vec![(*value, of(point))])),
            }
        }
        section.chart(chart);
    }
}

/// Price against time, if the machine file has prices.
fn pareto_front(page: &mut Page, swept: &Sweep) {
    let of = |front: bool| -> Vec<(f64, f64)> {
        let points = swept.points.iter().filter(|p| p.error.is_none() && (p.on_front || !front));
        let mut points: Vec<_> = points.filter_map(|p| Some((p.price?, p.end_s))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let all = of(false);
    if all.is_empty() {
        return;
    }
    let mut chart = Chart::new(
        "Price against time to solution",
        Axis::new("price (in the unit of the machine file)", Unit::Plain),
        Axis::new("time until the jobs end", Unit::Seconds),
    );
    chart.wide = true;
    chart.note = "A point of the front: no other point is at most as dear and ends sooner.".into();
    chart.series.push(Series::line("front", of(true)).shape(Shape::Steps));
    chart.series.push(Series::line("all points", all).shape(Shape::Dots));
    page.section("Pareto front").chart(chart);
}

/// A page of a sweep: bandwidth and time against the first key, and the Pareto front.
pub fn sweep(swept: &Sweep, machine: &str) -> String {
    let mut page = Page::new(format!("Sweep of {}", swept.keys.join(", ")));
    page.fact(format!("machine: {machine}"));
    page.fact(format!("{} simulations", swept.points.len()));
    page.footer(FOOTER);
    against_first_key(&mut page, swept);
    pareto_front(&mut page, swept);
    let rows = swept.rows(true);
    let heads: Vec<&str> = rows[0].iter().map(String::as_str).collect();
    page.section("Points").table("", &heads, rows[1..].to_vec());
    page.html()
}

/// How far a chart of candidates reaches from the answer, as a ratio: beyond, all runs stall or none.
const AROUND: f64 = 16.0;
/// With fewer points so near, it shows all of them.
const FEW: usize = 3;

/// Runs that stall against the candidates of an answer.
fn stalling(answer: &Answer) -> Chart {
    let unit = if answer.unit == "bytes" { Unit::Bytes } else { Unit::BytesPerSecond };
    let mut chart = Chart::new(
        answer.what,
        Axis::new(answer.what, unit).log(),
        Axis::new("runs that stall", Unit::Share).range(0.0, 1.05),
    );
    chart.note =
        "Points: candidates that were simulated. Dashed: the 95 % confidence interval.".into();
    let middle = answer.least.unwrap_or(answer.largest);
    let is_near = |value: f64| value >= middle / AROUND && value <= middle * AROUND;
    let few = answer.tried.iter().filter(|tried| is_near(tried.value)).count() < FEW;
    let near = |value: f64| few || is_near(value);
    let of = |value: fn(&Tried) -> f64| -> Vec<(f64, f64)> {
        let tried = answer.tried.iter().filter(|tried| near(tried.value));
        tried.map(|tried| (tried.value, value(tried))).collect()
    };
    let dashed =
        |value: fn(&Tried) -> f64| Series::line("95 % interval", of(value)).colour(0).dashed();
    chart.series.push(Series::line("stalled", of(|t| t.stalled_share)).colour(0).unlisted());
    chart.series.push(dashed(|t| t.low).unlisted());
    chart.series.push(dashed(|t| t.high));
    let dots = Series::line("runs that stall", of(|t| t.stalled_share)).colour(0);
    chart.series.push(dots.shape(Shape::Dots));
    if let Some(least) = answer.least {
        chart.marks.push(Mark {
            at: least,
            text: format!("least: {}", answer.shown()),
            colour: None,
        });
    }
    if near(answer.of_machine) {
        chart.marks.push(Mark { at: answer.of_machine, text: "machine file".into(), colour: None });
    }
    chart
}

/// A page of a sizing; `outcome` is of the machine as it is, or (`false`) with room for everything.
pub fn size(
    sizing: &Sizing,
    machine: &Machine,
    (outcome, is_as_it_is): (&Outcome, bool),
) -> String {
    let mut page = Page::new(format!("Sizing of {} for {}", outcome.machine, outcome.workload));
    let wish = &sizing.wish;
    page.fact(format!("at most {} % of runs may stall", digits(wish.stall_probability * 100.0)));
    page.fact(format!("{} seeds, times vary by {} %", wish.seeds, digits(wish.jitter * 100.0)));
    page.footer(FOOTER);
    let section = page.section("Answers");
    let rows = sizing.answers.iter().map(|answer| {
        vec![
            answer.what.to_string(),
            answer.shown(),
            answer.value_text(answer.of_machine),
            format!("{:.0} %", answer.stalled_share * 100.0),
            format!("{:.0} to {:.0} %", answer.low * 100.0, answer.high * 100.0),
        ]
    });
    let heads = ["", "least that will do", "machine file", "runs that stall", "95 % interval"];
    section.table("", &heads, rows.collect());
    section.text("Each answer leaves everything else as the machine file has it.");
    if let Some(given_up) = crate::size::given_up(sizing) {
        section.text(given_up);
    }
    let endurance = crate::size::endurance(sizing);
    let endures = sizing.endures_per_day.is_none_or(|least| least >= sizing.flash_writes_per_day);
    if endures {
        section.text(endurance)
    } else {
        section.warning(endurance)
    };
    let section = page.section("Runs that stall");
    for answer in &sizing.answers {
        section.chart(stalling(answer));
    }
    let title = match is_as_it_is {
        true => "The workload on the machine as it is",
        false => "The workload on the machine with room for everything: as it is, there is none",
    };
    over_time(page.section(title), outcome);
    parts(&mut page, machine);
    assumptions(&mut page, outcome);
    page.html()
}

/// What the machine consists of.
fn parts(page: &mut Page, machine: &Machine) {
    let mut rows: Vec<[String; 3]> = Vec::new();
    let both = |write: f64, read: f64| match write == read {
        true => format_rate(write),
        false => format!("{} to write, {} to read", format_rate(write), format_rate(read)),
    };
    let link = |link: &Link| {
        let rate = both(link.write_bytes_per_s, link.read_bytes_per_s);
        match link.round_trip_s {
            0.0 => rate,
            trip => format!("{rate}, round trip {}", format_time(trip)),
        }
    };
    let compute = &machine.compute;
    let processes = format!("up to {} processes each", compute.processes_per_node);
    rows.push(["compute nodes".into(), compute.nodes.to_string(), processes]);
    if let Some(port) = &compute.port {
        rows.push(["their ports".into(), compute.nodes.to_string(), link(port)]);
    }
    let origins = match &machine.io {
        Some(io) => {
            rows.push(["I/O nodes".into(), io.nodes.to_string(), link(&io.link)]);
            io.nodes
        }
        None => compute.nodes,
    };
    rows.push([
        "ports into the storage network".into(),
        origins.to_string(),
        link(&machine.network),
    ]);
    let storage = &machine.storage;
    let device = both(
        storage.device.write_bytes_per_s * storage.fill_factor(),
        storage.device.read_bytes_per_s * storage.fill_factor(),
    );
    rows.push(["file servers".into(), storage.servers.to_string(), format!("disks of {device}")]);
    if let Some(buffer) = &machine.buffer {
        let flash = both(buffer.device.write_bytes_per_s, buffer.device.read_bytes_per_s);
        let what = format!(
            "{}, {} x {} of {flash}",
            format_size(buffer.capacity_bytes as f64),
            buffer.devices,
            buffer.device.name
        );
        let place = match buffer.attach {
            Attach::Compute => "buffers in compute nodes",
            Attach::Io => "buffers in I/O nodes",
            Attach::Fabric => "buffers on the network",
            Attach::Storage => "buffers in file servers",
        };
        rows.push([place.into(), buffer.count.to_string(), what]);
    }
    let rows = rows.into_iter().map(Vec::from).collect();
    page.section("The machine").table(&machine.about, &["part", "how many", "each"], rows);
}
