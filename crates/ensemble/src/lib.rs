//! Statistics of many events of one kind, without the events: histograms with logarithmic buckets that
//! can be merged, moments, modes, order statistics, the gain of splitting transfers, correlation, period.
//! Pure arithmetic, no I/O: used by `forebay report`, and made for the benchmark and the simulator.
//!
//! The method is that of "Parallel I/O performance: from events to ensembles" (Uselton and others, IPDPS 2010): single
//! events are not reproducible, their distribution is, and a phase that ends at its slowest task is
//! described by order statistics of that distribution.

mod draws;
pub mod histogram;
mod modes;
mod moments;
mod order;
pub mod paired;
mod series;
mod split;

pub use histogram::{BUCKETS_PER_OCTAVE, Histogram};
pub use modes::{Mode, modes};
pub use moments::{Correlation, Moments};
pub use order::{expected_max, harmonic, median_max, slowest_sum};
pub use series::{Period, period};
pub use split::{Spent, Split, Splitting, split};
