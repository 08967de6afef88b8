//! What the watches have seen: every Pipeline, the objects with its label, Savepoints, Backfills, and the versions of
//! Secrets.
//!
//! Objects are kept as the JSON that a decision reads, so that a Pipeline that does not fit our types is no reason for a
//! watch to fail: the others go on. They are kept as texts, since trees of them take several times as much, and without
//! what no decision reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use millrace_operator_core::names::{
    ABOUT_NAMESPACE_LABEL, ABOUT_PIPELINE_LABEL, COMPONENT_LABEL, Names, PIPELINE_LABEL, RULES,
};
use millrace_operator_core::render;
use serde_json::{Value, json};

/// What `kubectl apply` writes for itself: the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Pipeline, or another object, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a watch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Pipelines,
    Savepoints,
    Backfills,
    /// Objects with our label, of one kind.
    Children,
    /// Rules in the operator's namespace, of one kind. Labels say which Pipeline they are about, who may be in any namespace
    /// that is looked after; nobody else may write there.
    Rules,
    /// Metadata of all Secrets, since those that specs name have no label of ours.
    Secrets,
}

/// What a change asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A person changed the Pipeline, or a Backfill of it.
    Edit(Key),
    /// One of its objects is another.
    Child(Key),
    /// A Secret of somebody's: whoever names it is concerned.
    Secret(Key),
    /// A Savepoint: its Pipeline is concerned, and whoever restores it.
    Savepoint { pipeline: Key, savepoint: Key },
}

/// What is kept of an object.
struct Kept {
    text: Arc<str>,
    /// It is another one when a change concerns somebody.
    mark: String,
    /// Of a Pipeline the Secrets that its spec names; of a Secret that the operator made the Pipeline.
    names: Vec<String>,
    /// Of a Pipeline the Savepoint that its spec restores.
    restores: Option<String>,
}

/// Objects by the Pipeline that they belong to and their own name; Pipelines and Secrets by themselves. A Savepoint that was
/// imported belongs to none, which has no name.
type Objects = BTreeMap<(Key, String), Kept>;

struct Watch {
    subject: Subject,
    objects: Objects,
    /// What was listed since the watch began anew. It replaces the objects once it is complete.
    listing: Objects,
    level: bool,
    /// The highest resource version that was seen.
    newest: u64,
}

/// One entry for each watch.
#[derive(Default)]
pub struct Cache(Mutex<Vec<Watch>>);

impl Cache {
    /// Registers a watch; its number goes with all that it says.
    pub fn register(&self, subject: Subject) -> usize {
        let mut watches = self.watches();
        watches.push(Watch { subject, objects: Objects::new(), listing: Objects::new(), level: false, newest: 0 });
        watches.len() - 1
    }

    /// Every watch has listed what there is.
    pub fn is_level(&self) -> bool {
        self.watches().iter().all(|watch| watch.level)
    }

    /// The highest resource version that any watch has seen.
    pub fn newest(&self) -> u64 {
        self.watches().iter().map(|watch| watch.newest).max().unwrap_or_default()
    }

    /// All Pipelines, and those that Savepoints and Backfills name or that rules are about although they are not there.
    pub fn all(&self) -> BTreeSet<Key> {
        let watches = self.watches();
        let looked_at = [Subject::Pipelines, Subject::Savepoints, Subject::Backfills, Subject::Rules];
        let of_these = watches.iter().filter(|watch| looked_at.contains(&watch.subject));
        of_these.flat_map(|watch| watch.objects.keys().map(|(key, _)| key.clone())).collect()
    }

    /// How many Pipelines there are.
    pub fn count(&self) -> usize {
        let watches = self.watches();
        watches.iter().filter(|watch| watch.subject == Subject::Pipelines).map(|watch| watch.objects.len()).sum()
    }

    pub fn pipeline(&self, key: &Key) -> Option<Value> {
        self.single(Subject::Pipelines, key, |kept| Arc::clone(&kept.text)).map(|text| object(&text))
    }

    /// The Pipeline's objects of all kinds.
    pub fn children(&self, key: &Key) -> Vec<Value> {
        let names = own_names(&key.namespace, &key.name);
        let secrets = [names.control(), names.control_ca()].into_iter().filter_map(|name| {
            let secret = Key { namespace: key.namespace.clone(), name };
            self.single(Subject::Secrets, &secret, |kept| Arc::clone(&kept.text))
        });
        let texts: Vec<Arc<str>> = self.own(Subject::Children, key).into_iter().chain(secrets).collect();
        texts.iter().map(|text| object(text)).collect()
    }

    /// The Backfills of a Pipeline, whether that is there or not.
    pub fn backfills(&self, pipeline: &Key) -> Vec<Value> {
        self.own(Subject::Backfills, pipeline).iter().map(|text| object(text)).collect()
    }

    /// What the operator's namespace has of rules about a Pipeline, whether that is there or not.
    pub fn rules(&self, key: &Key) -> Vec<Value> {
        self.own(Subject::Rules, key).iter().map(|text| object(text)).collect()
    }

    fn own(&self, subject: Subject, key: &Key) -> Vec<Arc<str>> {
        let watches = self.watches();
        let of_kinds = watches.iter().filter(|watch| watch.subject == subject);
        let own = of_kinds.flat_map(|watch| {
            let from = watch.objects.range((key.clone(), String::new())..);
            from.take_while(|((owner, _), _)| owner == key).map(|(_, kept)| Arc::clone(&kept.text))
        });
        own.collect()
    }

    /// The Pipelines whose specs name a Secret.
    pub fn naming(&self, secret: &Key) -> Vec<Key> {
        self.within(Subject::Pipelines, &secret.namespace, |(key, _), kept| {
            kept.names.contains(&secret.name).then(|| key.clone())
        })
    }

    /// The Pipelines whose specs restore a Savepoint.
    pub fn restoring(&self, savepoint: &Key) -> Vec<Key> {
        self.within(Subject::Pipelines, &savepoint.namespace, |(key, _), kept| {
            (kept.restores.as_ref() == Some(&savepoint.name)).then(|| key.clone())
        })
    }

    /// The Savepoints of a Pipeline, and the one that its spec restores.
    pub fn savepoints(&self, pipeline: &Key) -> Vec<Value> {
        let restores = self.single(Subject::Pipelines, pipeline, |kept| kept.restores.clone()).flatten();
        let texts = self.within(Subject::Savepoints, &pipeline.namespace, |(key, name), kept| {
            (key == pipeline || restores.as_ref() == Some(name)).then(|| Arc::clone(&kept.text))
        });
        texts.iter().map(|text| object(text)).collect()
    }

    /// What is picked of a namespace's objects.
    fn within<T>(
        &self,
        subject: Subject,
        namespace: &str,
        pick: impl Fn(&(Key, String), &Kept) -> Option<T>,
    ) -> Vec<T> {
        let watches = self.watches();
        let first = (Key { namespace: namespace.to_owned(), name: String::new() }, String::new());
        let of_subject = watches.iter().filter(|watch| watch.subject == subject);
        let near = of_subject.flat_map(|watch| watch.objects.range(first.clone()..));
        near.take_while(|((key, _), _)| key.namespace == namespace).filter_map(|(at, kept)| pick(at, kept)).collect()
    }

    /// The resource version of a Secret, if there is one.
    pub fn secret(&self, key: &Key) -> Option<String> {
        self.single(Subject::Secrets, key, |kept| kept.mark.clone())
    }

    /// Takes in what a watch says, and tells what follows.
    pub fn take(&self, watch: usize, event: Event<DynamicObject>) -> Vec<Change> {
        let mut watches = self.watches();
        let watch = &mut watches[watch];
        watch.newest = watch.newest.max(version(&event).unwrap_or_default());
        match event {
            Event::Init => watch.listing.clear(),
            Event::InitApply(object) => drop(watch.indexed(object).map(|(at, kept)| watch.listing.insert(at, kept))),
            Event::InitDone => {
                watch.level = true;
                let before = std::mem::replace(&mut watch.objects, std::mem::take(&mut watch.listing));
                let gone = before.iter().filter(|(at, _)| !watch.objects.contains_key(at));
                let new = watch.objects.iter().filter(|(at, kept)| kept.differs(before.get(at)));
                return gone.chain(new).map(|(at, kept)| watch.change(at, kept)).collect();
            }
            Event::Apply(object) => {
                let Some((at, kept)) = watch.indexed(object) else { return Vec::new() };
                let change = kept.differs(watch.objects.get(&at)).then(|| watch.change(&at, &kept));
                watch.objects.insert(at, kept);
                return change.into_iter().collect();
            }
            Event::Delete(object) => {
                let Some((at, kept)) = watch.indexed(object) else { return Vec::new() };
                watch.objects.remove(&at);
                return vec![watch.change(&at, &kept)];
            }
        }
        Vec::new()
    }

    fn single<T>(&self, subject: Subject, key: &Key, of: impl Fn(&Kept) -> T) -> Option<T> {
        let watches = self.watches();
        let mut of_subject = watches.iter().filter(|watch| watch.subject == subject);
        of_subject.find_map(|watch| watch.objects.get(&(key.clone(), String::new())).map(&of))
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.0.lock().expect("nobody panics while it holds the lock")
    }
}

/// Numbers that grow with every write to the cluster, of all kinds (KEP-5504).
fn version(event: &Event<DynamicObject>) -> Option<u64> {
    match event {
        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => {
            object.metadata.resource_version.as_ref()?.parse().ok()
        }
        Event::Init | Event::InitDone => None,
    }
}

impl Kept {
    fn differs(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|before| before.mark != self.mark)
    }
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).expect("it was written by us")
}

impl Watch {
    /// Where an object belongs, and what is kept of it. Who wrote which field is of no use here, and is half of it.
    fn indexed(&self, mut object: DynamicObject) -> Option<((Key, String), Kept)> {
        let metadata = &mut object.metadata;
        metadata.managed_fields = None;
        drop(metadata.annotations.as_mut().map(|annotations| annotations.remove(LAST_APPLIED)));
        let (namespace, name) = (metadata.namespace.clone()?, metadata.name.clone()?);
        let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
        let owner = label(PIPELINE_LABEL);
        let about = label(ABOUT_NAMESPACE_LABEL).zip(label(ABOUT_PIPELINE_LABEL));
        let version = metadata.resource_version.clone().unwrap_or_default();
        let mut restores = None;
        // Of those whose status nobody but the operator writes.
        let spec_mark = || {
            let (dates, texts) = ((metadata.generation, &metadata.deletion_timestamp), &metadata.annotations);
            json!([dates, texts, metadata.finalizers, metadata.uid]).to_string()
        };
        let (at, mark, names) = match self.subject {
            Subject::Pipelines => {
                let mark = spec_mark();
                restores = object.data["spec"]["restore"]["savepointRef"]["name"].as_str().map(str::to_owned);
                ((Key { namespace, name }, String::new()), mark, named_by(&object.data))
            }
            Subject::Savepoints => {
                let of = object.data["spec"]["pipelineRef"]["name"].as_str().unwrap_or_default().to_owned();
                ((Key { namespace, name: of }, name), version, Vec::new())
            }
            Subject::Backfills => {
                let mark = spec_mark();
                let of = object.data["spec"]["pipelineRef"]["name"].as_str().unwrap_or_default().to_owned();
                ((Key { namespace, name: of }, name), mark, Vec::new())
            }
            Subject::Children => ((Key { namespace, name: owner? }, name), version, Vec::new()),
            Subject::Rules => {
                let (namespace, pipeline) = about?;
                ((Key { namespace, name: pipeline }, name), version, Vec::new())
            }
            Subject::Secrets => {
                let owner = owner.filter(|owner| is_made_for(&namespace, owner, &name));
                ((Key { namespace, name }, String::new()), version, owner.into_iter().collect())
            }
        };
        // What a pod was made from says the label with the digest of its template.
        if let (Some("Pod"), Value::Object(data)) =
            (object.types.as_ref().map(|types| types.kind.as_str()), &mut object.data)
        {
            data.remove("spec");
        }
        // Rules are large, and what they were made from says an annotation.
        let labels = object.metadata.labels.as_ref();
        if labels.and_then(|labels| labels.get(COMPONENT_LABEL)).is_some_and(|component| component == RULES) {
            object.data = Value::Null;
        }
        Some((at, Kept { text: serde_json::to_string(&object).ok()?.into(), mark, names, restores }))
    }

    fn change(&self, (key, name): &(Key, String), kept: &Kept) -> Change {
        match (self.subject, kept.names.first()) {
            (Subject::Pipelines | Subject::Backfills, _) => Change::Edit(key.clone()),
            (Subject::Savepoints, _) => {
                let savepoint = Key { namespace: key.namespace.clone(), name: name.clone() };
                Change::Savepoint { pipeline: key.clone(), savepoint }
            }
            (Subject::Children | Subject::Rules, _) => Change::Child(key.clone()),
            (Subject::Secrets, Some(owner)) => Change::Child(Key { name: owner.clone(), ..key.clone() }),
            (Subject::Secrets, None) => Change::Secret(key.clone()),
        }
    }
}

/// The Secrets that a Pipeline's spec names.
fn named_by(pipeline: &Value) -> Vec<String> {
    let kafka = serde_json::from_value(pipeline["spec"]["kafka"].clone());
    let storage = serde_json::from_value(pipeline["spec"]["state"]["storage"].clone()).ok();
    kafka.map(|kafka| render::secrets(&kafka, storage.as_ref()).into_iter().collect()).unwrap_or_default()
}

/// Whether a Secret is one of those that the operator makes for a Pipeline.
fn is_made_for(namespace: &str, pipeline: &str, secret: &str) -> bool {
    let names = own_names(namespace, pipeline);
    [names.control(), names.control_ca()].iter().any(|name| name == secret)
}

fn own_names(namespace: &str, pipeline: &str) -> Names {
    Names { namespace: namespace.to_owned(), pipeline: pipeline.to_owned(), uid: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str, owner: &str, version: &str) -> DynamicObject {
        let labels = json!({PIPELINE_LABEL: owner});
        serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"namespace": "shop", "name": name, "labels": labels, "resourceVersion": version, "generation": 1},
        }))
        .expect("an object")
    }

    fn key(name: &str) -> Key {
        Key { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_list_replaces_what_was_known_at_once_and_names_what_changed() {
        let cache = Cache::default();
        let pods = cache.register(Subject::Children);
        cache.take(pods, Event::Init);
        cache.take(pods, Event::InitApply(object("Pod", "a-0", "a", "1")));
        cache.take(pods, Event::InitApply(object("Pod", "b-0", "b", "2")));
        assert!(!cache.is_level() && cache.children(&key("a")).is_empty());
        let changes = cache.take(pods, Event::InitDone);
        assert_eq!(changes, [Change::Child(key("a")), Change::Child(key("b"))]);
        assert!(cache.is_level());
        cache.take(pods, Event::Init);
        cache.take(pods, Event::InitApply(object("Pod", "b-0", "b", "2")));
        assert_eq!(cache.children(&key("a")).len(), 1, "half a list takes nothing away");
        assert_eq!(cache.take(pods, Event::InitDone), [Change::Child(key("a"))]);
        assert!(cache.children(&key("a")).is_empty());
    }

    #[test]
    fn a_secret_concerns_those_that_name_it_and_one_of_ours_its_pipeline() {
        let cache = Cache::default();
        let (pipelines, secrets) = (cache.register(Subject::Pipelines), cache.register(Subject::Secrets));
        for (name, secret) in [("a", "kafka"), ("b", "other")] {
            let of_secret = json!({"name": secret, "key": "user"});
            let plain = json!({"plain": {"username": of_secret, "password": of_secret}});
            let mut pipeline = object("Pipeline", name, "", "1");
            pipeline.data = json!({"spec": {"kafka": {"bootstrapServers": "kafka:9092", "authentication": plain}}});
            cache.take(pipelines, Event::Apply(pipeline));
        }
        let change = |name, owner| cache.take(secrets, Event::Apply(object("Secret", name, owner, "1")));
        assert_eq!(change("kafka", ""), [Change::Secret(key("kafka"))]);
        assert_eq!(cache.naming(&key("kafka")), [key("a")]);
        assert_eq!(change("b-control", "b"), [Change::Child(key("b"))]);
        // Somebody's, whatever label it has.
        assert_eq!(change("other", "b"), [Change::Secret(key("other"))]);
        assert_eq!(cache.secret(&key("other")).as_deref(), Some("1"));
    }

    #[test]
    fn a_savepoint_concerns_its_pipeline_and_whoever_restores_it() {
        let cache = Cache::default();
        let (pipelines, savepoints) = (cache.register(Subject::Pipelines), cache.register(Subject::Savepoints));
        let mut restoring = object("Pipeline", "b", "", "1");
        restoring.data = json!({"spec": {"restore": {"savepointRef": {"name": "before"}}}});
        cache.take(pipelines, Event::Apply(restoring));
        let mut savepoint = object("Savepoint", "before", "", "1");
        savepoint.data = json!({"spec": {"pipelineRef": {"name": "a"}}});
        let change = Change::Savepoint { pipeline: key("a"), savepoint: key("before") };
        assert_eq!(cache.take(savepoints, Event::Apply(savepoint)), [change]);
        assert_eq!(cache.restoring(&key("before")), [key("b")]);
        assert_eq!((cache.savepoints(&key("a")).len(), cache.savepoints(&key("b")).len()), (1, 1));
        assert!(cache.savepoints(&key("c")).is_empty());
        assert_eq!(cache.all().into_iter().collect::<Vec<_>>(), [key("a"), key("b")]);
        let mut imported = object("Savepoint", "imported", "", "1");
        imported.data = json!({"spec": {"from": {"location": "s3://b/savepoint.json"}}});
        let change = Change::Savepoint { pipeline: key(""), savepoint: key("imported") };
        assert_eq!(cache.take(savepoints, Event::Apply(imported)), [change]);
        assert_eq!(cache.savepoints(&key("")).len(), 1);
    }

    #[test]
    fn a_backfill_concerns_its_pipeline_until_its_status_is_written() {
        let cache = Cache::default();
        let watch = cache.register(Subject::Backfills);
        let mut backfill = object("Backfill", "again", "", "1");
        backfill.data = json!({"spec": {"pipelineRef": {"name": "a"}}});
        assert_eq!(cache.take(watch, Event::Apply(backfill.clone())), [Change::Edit(key("a"))]);
        backfill.metadata.resource_version = Some("2".to_owned());
        backfill.data["status"] = json!({"phase": "Running"});
        assert!(cache.take(watch, Event::Apply(backfill)).is_empty());
        assert_eq!(cache.backfills(&key("a"))[0]["status"]["phase"], "Running");
        assert_eq!(cache.all().into_iter().collect::<Vec<_>>(), [key("a")], "it may not be there");
        assert!(cache.backfills(&key("b")).is_empty());
    }

    #[test]
    fn rules_concern_the_pipeline_that_they_are_about_whether_it_is_there_or_not() {
        let cache = Cache::default();
        let (maps, rules) = (cache.register(Subject::Children), cache.register(Subject::Rules));
        let mut object = object("ConfigMap", "shop.a-rules", "", "1");
        let about = [(ABOUT_NAMESPACE_LABEL, "shop"), (ABOUT_PIPELINE_LABEL, "a"), (COMPONENT_LABEL, RULES)];
        object.metadata.labels = Some(about.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        object.metadata.namespace = Some("system".to_owned());
        object.data = json!({"data": {"rules.yaml": "long"}});
        assert!(cache.take(maps, Event::Apply(object.clone())).is_empty(), "it belongs to no Pipeline");
        assert_eq!(cache.take(rules, Event::Apply(object)), [Change::Child(key("a"))]);
        assert_eq!(cache.all().into_iter().collect::<Vec<_>>(), [key("a")]);
        assert!(cache.children(&key("a")).is_empty());
        let kept = cache.rules(&key("a"));
        assert_eq!((kept.len(), &kept[0]["metadata"]["namespace"]), (1, &json!("system")));
        assert!(kept[0]["data"].is_null(), "they are large");
        assert!(cache.rules(&Key { namespace: "system".to_owned(), name: "a".to_owned() }).is_empty());
    }

    #[test]
    fn a_status_that_was_written_is_no_edit() {
        let cache = Cache::default();
        let watch = cache.register(Subject::Pipelines);
        assert_eq!(cache.take(watch, Event::Apply(object("Pipeline", "a", "", "1"))), [Change::Edit(key("a"))]);
        assert!(cache.take(watch, Event::Apply(object("Pipeline", "a", "", "2"))).is_empty());
        let mut edited = object("Pipeline", "a", "", "3");
        edited.metadata.generation = Some(2);
        assert_eq!(cache.take(watch, Event::Apply(edited)), [Change::Edit(key("a"))]);
    }

    #[test]
    fn names_that_begin_alike_are_kept_apart() {
        let cache = Cache::default();
        let maps = cache.register(Subject::Children);
        for owner in ["a", "a-b", "b"] {
            cache.take(maps, Event::Apply(object("ConfigMap", &format!("{owner}-plan"), owner, "1")));
        }
        let names: Vec<_> = cache.children(&key("a")).iter().map(|o| o["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["a-plan"]);
    }
}
