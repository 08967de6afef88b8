//! What needs no broker and no cluster, in one program, which is linked once.

use proptest::prelude::ProptestConfig;

mod cases;
mod compile;
mod control;
mod embedded;
mod joins;
mod ledger;
mod repairs;
mod slices;
mod upserts;

/// Of tests over random worlds: each opens many databases, so there are fewer than the library's default; PROPTEST_CASES
/// asks for more.
fn worlds_config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { 48 } else { asked.cases };
    ProptestConfig { cases, max_shrink_iters: 200, failure_persistence: None, ..asked }
}
