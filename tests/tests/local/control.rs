//! Who is served by a worker's control API, and that its certificates can be replaced under it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use millrace_core::report::WorkerReport;
use millrace_core::slices::SlicesReport;
use millrace_kafka_harness::wait;
use millrace_runtime::control::{ControlConfig, Desk, serve};
use millrace_runtime::http::Server;
use millrace_runtime::metrics::Metrics;
use millrace_tests::control::{Authority, Client, Identity, install};
use millrace_tests::scratch;
use millrace_tests::story::DEADLINE;

fn served(dir: &Path) -> (Server, SocketAddr) {
    let desk = Arc::new(Desk::new(Arc::new(Metrics::new().unwrap())));
    desk.show(WorkerReport { worker: 7, ..WorkerReport::default() });
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = serve(&ControlConfig { address, dir: dir.to_owned() }, &desk).unwrap();
    let address = server.address;
    (server, address)
}

#[test]
fn only_who_shows_a_certificate_of_the_authority_that_has_not_expired_is_served() {
    let (dir, ours, theirs) = (scratch().unwrap(), Authority::new().unwrap(), Authority::new().unwrap());
    install(dir.path(), &[&ours], &ours.sign().unwrap()).unwrap();
    let (_server, address) = served(dir.path());
    let ask = |own: Option<&Identity>| Client::new(&[&ours], own).unwrap().status(address);
    assert_eq!(ask(Some(&ours.sign().unwrap())).unwrap().worker, 7);
    assert!(ask(None).is_err(), "no certificate");
    assert!(ask(Some(&theirs.sign().unwrap())).is_err(), "one of another authority");
    assert!(ask(Some(&ours.sign_until(2020).unwrap())).is_err(), "one that has expired");
    let stranger = Client::new(&[&theirs], Some(&ours.sign().unwrap())).unwrap();
    assert!(stranger.status(address).is_err(), "the worker shows a certificate of its own");
    assert_eq!(ask(Some(&ours.sign().unwrap())).unwrap().worker, 7, "nobody was held up");
}

#[test]
fn slices_are_told_again_to_whoever_asks_and_a_process_has_one_number() {
    let (dir, ours) = (scratch().unwrap(), Authority::new().unwrap());
    install(dir.path(), &[&ours], &ours.sign().unwrap()).unwrap();
    let client = Client::new(&[&ours], Some(&ours.sign().unwrap())).unwrap();
    let told = |address: SocketAddr, query: &str| -> SlicesReport {
        let (status, body) = client.slices(address, query).unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let ((_server, address), (_other, elsewhere)) = (served(dir.path()), served(dir.path()));
    let first = told(address, "");
    assert!(first.worker == 7 && first.started_index > 0 && first.process > 0, "{first:?}");
    let again = told(address, &format!("?from={}", first.started_index));
    assert_eq!((again.process, again.started_index), (first.process, first.started_index));
    assert_ne!(told(elsewhere, "").process, first.process);
    let (status, body) = client.slices(address, "?from=yesterday").unwrap();
    assert_eq!((status, body.as_str()), (400, r#"{"error":"'from=yesterday' is not from=<index>"}"#));
}

#[test]
fn the_authority_is_replaced_without_a_second_in_which_somebody_is_refused() {
    let (dir, old, new) = (scratch().unwrap(), Authority::new().unwrap(), Authority::new().unwrap());
    install(dir.path(), &[&old], &old.sign().unwrap()).unwrap();
    let (_server, address) = served(dir.path());
    let before = Client::new(&[&old, &new], Some(&old.sign().unwrap())).unwrap();
    let after = Client::new(&[&old, &new], Some(&new.sign().unwrap())).unwrap();
    assert!(after.status(address).is_err());
    // First both are trusted, then the worker's own certificate changes, then the old authority goes.
    install(dir.path(), &[&old, &new], &old.sign().unwrap()).unwrap();
    let old_works = || before.status(address).expect("both are trusted").worker == 7;
    wait::until("the bundle", DEADLINE, || Ok(old_works() && after.status(address).is_ok())).unwrap();
    install(dir.path(), &[&old, &new], &new.sign().unwrap()).unwrap();
    let new_alone = Client::new(&[&new], Some(&new.sign().unwrap())).unwrap();
    wait::until("the worker's certificate", DEADLINE, || Ok(old_works() && new_alone.status(address).is_ok())).unwrap();
    install(dir.path(), &[&new], &new.sign().unwrap()).unwrap();
    let new_works = || after.status(address).expect("it is trusted").worker == 7;
    wait::until("the old one to be refused", DEADLINE, || Ok(new_works() && before.status(address).is_err())).unwrap();
}
