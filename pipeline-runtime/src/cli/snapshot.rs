//! `millrace snapshot`.

use anyhow::Context;

use super::preflight::Args as Common;
use super::savepoint::with_job;
use super::{Failure, Outcome};
use crate::clock;
use crate::snapshot::{self, Folder, Manifest};
use crate::worker::Job;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists the snapshots of each task: epoch, age, size of the state.
    Ls(Common),
    /// Reads every snapshot and compares each of its files with its hash.
    Verify(Common),
}

pub fn run(args: &Args) -> Outcome {
    let (common, verify) = match &args.command {
        Command::Ls(common) => (common, false),
        Command::Verify(common) => (common, true),
    };
    let damaged = with_job(common, |job| list(job, verify))?;
    if damaged.is_empty() { Ok(()) } else { Err(Failure::Said(damaged)) }
}

/// Prints a line for each snapshot; returns what is wrong with some.
fn list(job: &Job, verify: bool) -> anyhow::Result<Vec<String>> {
    let storage = job.storage.as_ref().context("spec.state.storage is not set: there are no snapshots")?;
    let (store, scratch) = (storage.connect()?, tempfile::tempdir().context("make a temporary folder")?);
    let mut damaged = Vec::new();
    for (_, task) in snapshot::tasks(&store)?.into_iter().filter(|(timeline, _)| *timeline == job.timeline) {
        let folder = Folder::new(job.timeline, &task);
        for name in snapshot::manifests(&store, &folder)? {
            let read = snapshot::read_manifest(&store, &folder, &name, &task)?;
            let checked = read.and_then(|manifest| {
                if verify {
                    let dir = scratch.path().join(name.to_string());
                    let fetched = std::fs::create_dir(&dir).map_err(anyhow::Error::from);
                    let fetched =
                        fetched.and_then(|()| Ok(snapshot::fetch(&store, &folder, &manifest, &dir, &|| true, &|| {})?));
                    fetched.map_err(|error| format!("{error:#}"))?;
                    std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())?;
                }
                Ok(manifest)
            });
            match checked {
                Ok(manifest) => println!("{}", line(&manifest, verify)),
                Err(why) => damaged.push(format!("snapshot {}: {why}", folder.manifest(&name))),
            }
        }
    }
    Ok(damaged)
}

fn line(manifest: &Manifest, verified: bool) -> String {
    let Manifest { task, marker, taken_ms, .. } = manifest;
    let age_s = (clock::now_ms() - taken_ms).max(0) / 1000;
    let (epoch, bytes) = (marker.epoch, manifest.bytes());
    format!("{task}\tepoch {epoch}\t{age_s} s old\t{bytes} bytes{}", if verified { "\tok" } else { "" })
}
