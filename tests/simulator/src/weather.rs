//! What can happen, and how likely each seed makes it.

use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A lane does something.
    Step,
    AppendLands,
    /// An append is sent once more, because its answer was lost.
    AppendRepeated,
    MarkerLands,
    TimerFires,
    AssignmentArrives,
    /// Somebody changes where tasks shall lie.
    Edit,
    OperatorLooks,
    OperatorWrites,
    /// A restorer reads a slice of a changelog.
    Restore,
    /// A state is written out.
    Flush,
    /// The state of a task that runs is held fast, for a snapshot.
    Checkpoint,
    Upload,
    DamageSnapshot,
    SavepointStep,
    /// What was read between the stages is deleted.
    TrimBetween,
    /// An EndTxn request that its client has given up.
    LateRequestLands,
    Crash,
    /// The platform believes that a process is dead, and it is not.
    Twin,
    PaceChanges,
    TransactionTimesOut,
    GroupOffsetChanges,
    Compact,
    Clean,
    Leave,
}

use Happening as H;

/// The weight in a seed: one of `.0..=.1`, or, for a fault that six of ten seeds don't have, up to `.1`.
#[derive(Clone, Copy)]
enum Weight {
    Often(u32, u32),
    Rarely(u32),
}

use Weight::{Often, Rarely};

/// With the weight when all is calm.
const WEATHER: [(Happening, Weight, u32); 25] = [
    (H::Step, Often(2400, 2400), 100),
    (H::AppendLands, Often(80, 800), 30),
    (H::AppendRepeated, Rarely(80), 0),
    (H::MarkerLands, Often(4, 600), 30),
    (H::TimerFires, Often(4, 160), 10),
    (H::AssignmentArrives, Often(8, 240), 10),
    (H::Edit, Often(2, 24), 0),
    (H::OperatorLooks, Often(4, 60), 10),
    (H::OperatorWrites, Often(4, 60), 10),
    (H::Restore, Often(40, 600), 40),
    (H::Flush, Often(1, 60), 2),
    (H::Checkpoint, Rarely(80), 2),
    (H::Upload, Often(4, 60), 2),
    (H::DamageSnapshot, Rarely(20), 0),
    (H::SavepointStep, Rarely(60), 0),
    (H::TrimBetween, Rarely(60), 2),
    (H::LateRequestLands, Rarely(80), 0),
    (H::Crash, Rarely(4), 0),
    (H::Twin, Rarely(6), 0),
    (H::PaceChanges, Often(8, 50), 0),
    (H::TransactionTimesOut, Rarely(8), 2),
    (H::GroupOffsetChanges, Rarely(20), 0),
    (H::Compact, Rarely(120), 0),
    (H::Clean, Rarely(40), 0),
    (H::Leave, Rarely(2), 0),
];

/// What a seed is mostly about: an order of events that needs one kind of fault three times over is not found where all
/// kinds are equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Climate {
    /// A bit of everything.
    Mixed,
    /// Two processes under one name, most of the time, whose tasks come and go.
    Twins,
    /// Processes live long, and tasks are taken from lanes that don't hear of it, by fences that take long.
    Force,
    /// Tasks go from lane to lane faster than their markers become visible.
    SlowMarkers,
    /// Not much goes wrong but that someone crashes in the middle of a hand-over, or that its goal changes; and disks,
    /// snapshots and the ends of changelogs are lost.
    Rescale,
}

impl Climate {
    pub const ALL: [Self; 5] = [Self::Mixed, Self::Twins, Self::SlowMarkers, Self::Force, Self::Rescale];

    /// The weight of a happening, where it differs.
    fn weight(self, happening: Happening, weight: Weight) -> Weight {
        match (self, happening) {
            (Self::Twins, H::Twin) => Often(2, 12),
            (Self::Twins, H::Crash | H::Leave) | (Self::Force, H::Twin | H::Crash | H::Leave) => Often(0, 0),
            (Self::Twins | Self::Force, H::SavepointStep) => Often(10, 80),
            (Self::Twins | Self::Force, H::TransactionTimesOut) => Rarely(80),
            (Self::Twins | Self::Force, H::Edit) => Often(20, 60),
            (Self::Twins, H::AssignmentArrives) => Often(100, 300),
            (Self::Twins, H::TimerFires) => Often(1, 16),
            (Self::Twins, H::MarkerLands) => Often(4, 40),
            (Self::Force, H::TimerFires) => Often(8, 60),
            (Self::Force, H::MarkerLands) => Often(100, 600),
            (Self::Force, H::Compact) => Often(1, 120),
            (Self::SlowMarkers, H::MarkerLands) => Often(1, 12),
            (Self::SlowMarkers, H::Compact) => Often(40, 160),
            (Self::SlowMarkers, H::Edit) => Often(10, 40),
            (Self::SlowMarkers, H::Crash) => Often(2, 10),
            (Self::SlowMarkers, H::TimerFires) => Often(60, 200),
            (Self::Rescale, H::Crash) => Often(1, 10),
            (Self::Rescale, H::Checkpoint) => Often(10, 100),
            (Self::Rescale, H::Upload) => Often(10, 60),
            (Self::Rescale, H::DamageSnapshot) => Often(0, 12),
            (Self::Rescale, H::Edit) => Often(4, 12),
            (Self::Rescale, H::MarkerLands) => Often(20, 300),
            (Self::Rescale, H::OperatorLooks | H::OperatorWrites) => Often(20, 60),
            _ => weight,
        }
    }
}

/// The weights of one seed, each with those before it.
pub struct Weather([u32; WEATHER.len()]);

impl Weather {
    pub fn of(climate: Climate, rng: &mut Rng) -> Self {
        Self::from(WEATHER.map(|(happening, weight, _)| match climate.weight(happening, weight) {
            Often(from, to) => from + rng.below((to - from + 1) as usize) as u32,
            Rarely(to) => u32::from(rng.per_mille(400)) * (1 + rng.below(to as usize) as u32),
        }))
    }

    pub fn calm() -> Self {
        Self::from(WEATHER.map(|(_, _, calm)| calm))
    }

    fn from(weights: [u32; WEATHER.len()]) -> Self {
        let mut sum = 0;
        Self(weights.map(|weight| {
            sum += weight;
            sum
        }))
    }

    pub fn draw(&self, rng: &mut Rng) -> Happening {
        let one = rng.below(self.0[WEATHER.len() - 1] as usize) as u32;
        WEATHER[self.0.partition_point(|sum| *sum <= one)].0
    }
}

/// How a process gets on, compared to the others. Stalls and bursts find what evenly mixed steps never would: one that
/// sleeps while the others go through a whole hand-over.
pub struct Pace {
    pub steps: u32,
    pub appends: u32,
    /// It hears of new assignments.
    pub hears: bool,
    /// In a thousand: a lane reads on in the control log although nothing waits for it.
    pub follows: u32,
}

impl Pace {
    pub const EVEN: Self = Self { steps: 30, appends: 30, hears: true, follows: 50 };

    pub fn any(climate: Climate, rng: &mut Rng) -> Self {
        let mut one = |of: [u32; 5]| of[rng.below(5)];
        let stalls = matches!(climate, Climate::Mixed | Climate::SlowMarkers);
        Self {
            steps: one(if stalls { [0, 1, 10, 30, 100] } else { [10, 10, 10, 30, 30] }),
            appends: one([0, 1, 10, 30, 100]),
            hears: one(match climate {
                Climate::Mixed | Climate::SlowMarkers => [0, 0, 1, 1, 1],
                Climate::Twins => [1, 1, 1, 1, 1],
                Climate::Rescale => [0, 1, 1, 1, 1],
                Climate::Force => [0, 0, 0, 0, 1],
            }) > 0,
            follows: one(if stalls { [0, 10, 50, 50, 300] } else { [0, 50, 300, 300, 300] }),
        }
    }
}
