//! What the user asks for, what a compiler makes of it, and which plans take up whose state: small enough to be seen to be
//! right.

use millrace_core::fingerprint::fnv1a;
use millrace_core::report::{Compiled, Mistake, StateFit, hex};
use millrace_operator_core::observed::Compilation;
use millrace_simulator::rng::Rng;
use serde_json::{Value, json};

pub const NAME: &str = "p";
pub const SECRET: &str = "kafka-user";
/// The stages of every plan.
pub const READS: &str = "r";
pub const WRITES: &str = "s";
/// Plans that compile are numbered below it.
const PLANS: u32 = 6;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// One of [`PLANS`]; above them the compiler finds a mistake.
    pub plan: u32,
    /// The shape is wrong already.
    pub misshapen: bool,
    pub replicas: u32,
    pub state: &'static str,
    pub deletion: &'static str,
    /// Which brokers.
    pub servers: u32,
    pub log_level: &'static str,
    /// Name of the Savepoint, and the attempt.
    pub restore: Option<(String, u32)>,
}

impl Wish {
    pub fn new() -> Self {
        let (state, deletion, log_level) = ("Running", "Retain", "info");
        Self { plan: 0, misshapen: false, replicas: 1, state, deletion, servers: 0, log_level, restore: None }
    }

    /// One thing of it changes.
    pub fn edit(&mut self, rng: &mut Rng) {
        match rng.below(15) {
            0..=3 => self.plan = rng.below(PLANS as usize) as u32,
            4 => self.plan = PLANS,
            5 => self.misshapen = !self.misshapen,
            6..=7 => self.replicas = rng.below(4) as u32,
            8..=9 => self.state = ["Running", "Running", "Suspended", "Drained"][rng.below(4)],
            10 => self.deletion = ["Retain", "Delete"][rng.below(2)],
            11 => self.servers = rng.below(2) as u32,
            12 => self.log_level = ["info", "debug"][rng.below(2)],
            _ => self.restore = rng.per_mille(700).then(|| (savepoint(rng), 1 + rng.below(2) as u32)),
        }
    }

    /// What is wrong with it is put right.
    pub fn mend(&mut self) {
        self.misshapen = false;
        self.plan = self.plan.min(PLANS - 1);
    }

    pub fn is_valid(&self) -> bool {
        !self.misshapen && self.plan < PLANS
    }

    /// How many pods it asks for.
    pub fn pods(&self) -> u32 {
        if self.state == "Running" { self.replicas } else { 0 }
    }

    pub fn spec(&self) -> Value {
        let secret = |key: &str| json!({"name": SECRET, "key": key});
        let columns = json!([{"name": "amount", "type": "BIGINT"}]);
        let json = json!({"type": "Json"});
        let mut spec = json!({
            "replicas": self.replicas,
            "desiredState": self.state,
            "deletionPolicy": self.deletion,
            "kafka": {
                "bootstrapServers": format!("kafka-{}:9093", self.servers),
                "authentication": {"scramSha512": {"username": secret("user"), "password": secret("password")}},
            },
            "sources": [{"name": "a", "kafka": {"topic": "a"}, "format": json, "columns": columns}],
            "steps": [{"name": "s", "from": "a", "project": {"where": format!("amount > {}", self.plan)}}],
            "sinks": [{
                "name": "o",
                "from": "s",
                "kafka": {"topic": "o"},
                "key": {"columns": ["amount"]},
                "format": json,
                "write": {"mode": "Upsert"},
            }],
            "worker": {"logLevel": self.log_level},
            "state": {"storage": {"file": {"path": "/savepoints"}}},
        });
        if let Some((name, attempt)) = &self.restore {
            let restore = json!({"savepointRef": {"name": name}, "alreadyWritten": "Append", "attempt": attempt});
            spec["restore"] = restore;
        }
        if self.misshapen {
            spec["nonsense"] = json!(1);
        }
        spec
    }
}

/// The name of one of the Savepoints.
pub fn savepoint(rng: &mut Rng) -> String {
    format!("s{}", rng.below(3))
}

/// The name of one of the Backfills.
pub fn backfill(rng: &mut Rng) -> String {
    format!("b{}", rng.below(2))
}

/// The number of the plan that a spec asks for.
pub fn plan_of(spec: &Value) -> u32 {
    let condition = spec["steps"][0]["project"]["where"].as_str().unwrap_or_default();
    condition.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(PLANS)
}

/// Tasks of `r` write what tasks of `s` read.
pub fn plan(number: u32) -> Value {
    let output = |to: Value| json!([{"from": {"Input": 0}, "to": to}]);
    json!({
        "plan": number,
        "stages": [
            {"name": READS, "outputs": output(json!({"Exchange": "x"}))},
            {"name": WRITES, "outputs": output(json!({"Sink": "o"}))},
        ],
        "exchanges": [{"name": "x", "stage": WRITES}],
    })
}

pub fn fingerprint(number: u32) -> String {
    hex(fnv1a(plan(number).to_string().as_bytes()))
}

/// The number of a plan, by its fingerprint.
pub fn number(of: &str) -> Option<u32> {
    (0..PLANS).find(|number| fingerprint(*number) == of)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Kept,
    Empty,
    Lost,
}

/// Whether a plan goes on with another one's state: those of a pair do; the first two pairs do once nothing waits.
pub fn fit(from: u32, to: u32) -> Fit {
    match (from / 2, to / 2) {
        (a, b) if a == b => Fit::Kept,
        (0 | 1, 0 | 1) => Fit::Empty,
        _ => Fit::Lost,
    }
}

pub fn compile(spec: &Value, previous: Option<&Value>) -> Compilation {
    if spec["nonsense"].is_number() {
        return Compilation::Pending;
    }
    let number = plan_of(spec);
    if number >= PLANS {
        let mistake =
            Mistake { path: "spec.steps[0]".to_owned(), message: "is wrong".to_owned(), ..Mistake::default() };
        return Compilation::Done(Box::new(Compiled { mistakes: vec![mistake], ..Compiled::default() }));
    }
    let reasons = vec!["the key changed".to_owned()];
    let previous = previous.and_then(|plan| plan["plan"].as_u64()).map(|plan| plan as u32);
    let fit = match previous.map(|previous| fit(previous, number)) {
        None => StateFit::NoPrevious,
        Some(Fit::Kept) => StateFit::Kept,
        Some(Fit::Empty) => StateFit::KeptIfEmpty { reasons },
        Some(Fit::Lost) => StateFit::Lost { reasons },
    };
    Compilation::Done(Box::new(Compiled {
        plan: Some(plan(number)),
        fingerprint: fingerprint(number),
        state_fingerprint: hex(u64::from(number / 2)),
        fit,
        ..Compiled::default()
    }))
}
