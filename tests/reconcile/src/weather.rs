//! What can happen, and how likely each seed makes it.

use millrace_simulator::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// An operator decides, or does the next write that it has decided.
    Operator,
    /// An operator hears of what was written.
    Watch,
    /// An operator asks a worker.
    Ask,
    StatefulSet,
    Jobs,
    Kubelet,
    Garbage,
    Worker,
    Time,
    Edit,
    SavepointMade,
    SavepointDeleted,
    BackfillMade,
    BackfillEdited,
    BackfillDeleted,
    OperatorCrashes,
    /// A write lands whose answer nobody waited for.
    LateWrite,
    Kill,
    PodDeleted,
    Unreachable,
    NodeLost,
    NodesBack,
    ConfigMapLost,
    Recreated,
    Backup,
    Restored,
    SecretGone,
    BrokersGone,
    PartitionAdded,
}

use Happening as H;

/// With the weight in a seed: one of `.1..=.2`, and when all is calm.
const WEATHER: [(Happening, u32, u32, u32); 29] = [
    (H::Operator, 200, 400, 300),
    (H::Watch, 40, 400, 400),
    (H::Ask, 20, 200, 100),
    (H::StatefulSet, 50, 200, 100),
    (H::Jobs, 50, 200, 100),
    (H::Kubelet, 100, 300, 200),
    (H::Garbage, 20, 200, 100),
    (H::Worker, 100, 400, 200),
    (H::Time, 20, 100, 40),
    (H::Edit, 4, 20, 0),
    (H::SavepointMade, 0, 12, 0),
    (H::SavepointDeleted, 0, 4, 0),
    (H::BackfillMade, 0, 10, 0),
    (H::BackfillEdited, 0, 8, 0),
    (H::BackfillDeleted, 0, 4, 0),
    (H::OperatorCrashes, 0, 10, 0),
    (H::LateWrite, 0, 30, 0),
    (H::Kill, 0, 8, 0),
    (H::PodDeleted, 0, 8, 0),
    (H::Unreachable, 0, 10, 0),
    (H::NodeLost, 0, 6, 0),
    (H::NodesBack, 0, 6, 0),
    (H::ConfigMapLost, 0, 6, 0),
    (H::Recreated, 0, 3, 0),
    (H::Backup, 1, 4, 0),
    (H::Restored, 0, 3, 0),
    (H::SecretGone, 0, 4, 0),
    (H::BrokersGone, 0, 6, 0),
    (H::PartitionAdded, 0, 3, 0),
];

/// The weights of one seed. Half of the seeds don't have one or another of the faults: a world in which everything goes
/// wrong all the time never gets far.
pub struct Weather([u32; WEATHER.len()]);

impl Weather {
    pub fn of(rng: &mut Rng) -> Self {
        Self(WEATHER.map(|(_, from, to, _)| {
            let weight = from + rng.below((to - from + 1) as usize) as u32;
            if from == 0 && rng.per_mille(500) { 0 } else { weight }
        }))
    }

    pub fn calm() -> Self {
        Self(WEATHER.map(|(.., calm)| calm))
    }

    pub fn draw(&self, rng: &mut Rng) -> Happening {
        WEATHER[rng.weighted(self.0)].0
    }
}
