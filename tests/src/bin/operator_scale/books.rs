//! Books of SLOs as they are after a month, when their windows are full: those of a few minutes take less memory, and less
//! time to be read and written.

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams};
use millrace_operator_core::render::BOOKS;
use millrace_operator_core::slo::books::BUCKETS;
use millrace_operator_core::slo::ring::{Counts, Ring};
use serde_json::{Value, json};

/// Slices of a bucket of the default window, which is 30 days.
const BUCKET_SLICES: i64 = 30 * 8_640 / BUCKETS as i64;
/// Records of a slice: as [`crate::slices`] has them, of two sources with four partitions.
const RECORDS: u64 = 7_200;
/// Books that are written at once.
const AT_ONCE: usize = 8;

/// Fills all books that are there, while no operator is, and says how many there are.
pub async fn fill(maps: &Api<ConfigMap>) -> anyhow::Result<usize> {
    let all = ListParams::default().labels("app.kubernetes.io/component=slos");
    let names: Vec<String> =
        maps.list_metadata(&all).await?.items.into_iter().filter_map(|m| m.metadata.name).collect();
    let fill = stream::iter(&names).map(Ok::<_, anyhow::Error>).try_for_each_concurrent(AT_ONCE, |name| async move {
        let data = maps.get(name).await?.data.unwrap_or_default();
        let text = data.get(BOOKS).with_context(|| format!("there are no books in {name}"))?;
        let patch = json!({"data": {BOOKS: filled(text)?}});
        maps.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop).context("write books")
    });
    fill.await?;
    Ok(names.len())
}

fn filled(text: &str) -> anyhow::Result<String> {
    let mut books: Value = serde_json::from_str(text).context("read books")?;
    let judged = books["judged"].as_i64().context("books say how far they are")?;
    let mut window = Ring::new(BUCKET_SLICES, BUCKETS);
    for ago in (0..BUCKETS as i64).rev() {
        // Equal neighbours would be written as one.
        let slices = (BUCKET_SLICES - ago % 7) as u32;
        let counts = Counts { slices, observations: u64::from(slices) * RECORDS, bad: (ago % 3).unsigned_abs() };
        window.add(judged - ago * BUCKET_SLICES, counts);
    }
    let slos = books["slos"].as_object_mut().context("books are of SLOs")?;
    slos.values_mut().for_each(|slo| slo["window"] = json!(window.text()));
    Ok(books.to_string())
}
