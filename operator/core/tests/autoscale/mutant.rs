//! The decider without one of its rules. What it sees, or what it says, is bent, so that the core has no switches.

use millrace_crds::pipeline::LastScaled;
use millrace_operator_core::autoscale::{Advice, Gap, Reason, Sample, Terms};

use crate::plant::{Arrivals, Plant};
use crate::world::Violation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Scales again at once.
    NoStabilisation,
    /// A lag that is not known is none.
    UnknownIsZero,
    /// Tasks on their way are no reason to wait.
    MovesAreIgnored,
    /// What a lane does when it has little to do is all that it can.
    CapacityWhenIdle,
    /// As few workers as are just enough.
    NoRoom,
    /// More workers than tasks.
    TasksAreIgnored,
    /// All lag when one does.
    HotPartitionIsIgnored,
    /// What the last step up has brought is forgotten.
    GainIsIgnored,
    /// A row that was written with an old timestamp has waited since.
    TimestampsAreBelieved,
    /// Nothing is done about lag.
    NothingIsDone,
}

impl Mutant {
    pub const ALL: [Self; 10] = [
        Self::NoStabilisation,
        Self::UnknownIsZero,
        Self::MovesAreIgnored,
        Self::CapacityWhenIdle,
        Self::NoRoom,
        Self::TasksAreIgnored,
        Self::HotPartitionIsIgnored,
        Self::GainIsIgnored,
        Self::TimestampsAreBelieved,
        Self::NothingIsDone,
    ];

    /// What its rule is about, if it is about something: whoever breaks it need not wait for chance.
    pub fn arrivals(self) -> Option<Arrivals> {
        match self {
            Self::NoStabilisation | Self::NothingIsDone => Some(Arrivals::Step),
            Self::CapacityWhenIdle | Self::NoRoom => Some(Arrivals::Constant),
            Self::HotPartitionIsIgnored => Some(Arrivals::Hot),
            Self::GainIsIgnored => Some(Arrivals::Limited),
            Self::TimestampsAreBelieved => Some(Arrivals::Old),
            Self::UnknownIsZero | Self::MovesAreIgnored | Self::TasksAreIgnored => None,
        }
    }

    /// Whether a violation is this mutant's harm.
    pub fn is_caught_by(self, violation: &Violation) -> bool {
        use Violation as V;
        match self {
            Self::NoStabilisation => matches!(violation, V::TooSoon { .. }),
            Self::UnknownIsZero | Self::MovesAreIgnored => *violation == V::Blind,
            Self::CapacityWhenIdle => matches!(violation, V::Idle { .. }),
            Self::NoRoom => matches!(violation, V::Restless { .. }),
            Self::TasksAreIgnored => matches!(violation, V::OutOfBounds { .. }),
            Self::HotPartitionIsIgnored | Self::GainIsIgnored => matches!(violation, V::InVain { .. }),
            Self::TimestampsAreBelieved => matches!(violation, V::Idle { .. }),
            Self::NothingIsDone => matches!(violation, V::Behind { .. }),
        }
    }

    /// Bends what it sees.
    pub fn see(
        self,
        plant: &Plant,
        before: Option<&Sample>,
        sample: &mut Sample,
        terms: &mut Terms,
        last: &mut Option<LastScaled>,
    ) {
        let parts = &mut sample.parts;
        match self {
            Self::NoStabilisation => *last = None,
            Self::UnknownIsZero if matches!(parts, Err(Gap::Unknown(_))) => {
                let before = before.and_then(|before| before.parts.as_ref().ok());
                let none = before.cloned().unwrap_or_else(|| plant.parts()).into_iter();
                *parts = Ok(none
                    .map(|mut part| {
                        part.lag_ms = 0;
                        part.lag_records = 0;
                        part
                    })
                    .collect());
            }
            Self::MovesAreIgnored if !matches!(parts, Ok(_) | Err(Gap::Unknown(_))) => *parts = Ok(plant.parts()),
            Self::CapacityWhenIdle => parts.iter_mut().flatten().for_each(|part| {
                let (least_ms, rows) = (terms.target_ms.min(10_000), plant.kind.rate as i64 * 200);
                part.lag_ms = part.lag_ms.max(least_ms);
                part.lag_records = part.lag_records.max(rows);
            }),
            Self::TasksAreIgnored => terms.stages.values_mut().for_each(|tasks| *tasks += 100),
            Self::HotPartitionIsIgnored => {
                let worst = parts.iter().flatten().max_by_key(|part| part.lag_ms).cloned();
                let lagging = worst.filter(|worst| worst.lag_ms > terms.target_ms);
                let all = parts.iter_mut().flatten();
                all.zip(lagging.iter().cycle()).for_each(|(part, worst)| {
                    (part.lag_ms, part.lag_records) = (worst.lag_ms, worst.lag_records);
                });
            }
            Self::GainIsIgnored => last.iter_mut().for_each(|last| last.rows_per_second = 0),
            Self::TimestampsAreBelieved => parts.iter_mut().flatten().for_each(|part| {
                // As many rows as their age lets expect.
                part.lag_records = part.lag_records.max(part.lag_ms * 1_000);
            }),
            _ => {}
        }
    }

    /// Bends what it says.
    pub fn decide(self, plant: &Plant, terms: &Terms, advice: &mut Advice) {
        match self {
            Self::NoRoom if advice.reason == Reason::Steady => {
                let enough = (terms.min..plant.replicas).find(|n| Plant::suffice(&plant.kind, *n, 1.0));
                advice.to = enough;
            }
            Self::NothingIsDone if advice.reason == Reason::LagAboveTarget => advice.to = None,
            _ => {}
        }
    }
}
