use millrace_simulator::{Mutant, catch};

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let t = std::time::Instant::now();
        match catch(mutant, 0, 2_000) {
            None => println!("{mutant:?} NOT CAUGHT {:?}", t.elapsed()),
            Some((seed, violation)) => println!("{mutant:?} {seed} {:?} {violation}", t.elapsed()),
        }
    }
}
