use millrace_simulator::{Mutant, Violation, run};
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    for m in Mutant::ALL
        .into_iter()
        .skip(6)
        .filter(|m| ["Init","Former","Fenced","Tomb"].iter().any(|t| format!("{m:?}").contains(t)) && !format!("{m:?}").contains("ReadAf"))
    {
        let count = |from: u64| {
            (from..n)
                .step_by(2)
                .filter(|s| run(*s, Some(m), false).violation.is_some_and(|v| !matches!(v, Violation::Stuck { .. })))
                .count()
        };
        let c = std::thread::scope(|s| {
            let a = s.spawn(move || count(0));
            let b = s.spawn(move || count(1));
            a.join().unwrap() + b.join().unwrap()
        });
        println!("{m:?} {c}");
    }
}
