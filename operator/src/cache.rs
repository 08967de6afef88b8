//! What the watches have seen: every Pipeline, the objects with its label, and the versions of Secrets.
//!
//! Objects are kept as the JSON that a decision reads, so that a Pipeline that does not fit our types is no reason for a
//! watch to fail: the others go on.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use millrace_operator_core::names::{Names, PIPELINE_LABEL};
use serde_json::Value;

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
    /// Objects with our label, of one kind.
    Children,
    /// Metadata of all Secrets, since those that specs name have no label of ours.
    Secrets,
}

/// What a change asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A person changed the Pipeline.
    Edit(Key),
    /// One of its objects is another.
    Child(Key),
    /// A Secret: whoever names it is concerned.
    Secret(Key),
}

/// Objects by the Pipeline that they belong to and their own name; Pipelines and Secrets by themselves.
type Objects = BTreeMap<(Key, String), Value>;

struct Watch {
    subject: Subject,
    objects: Objects,
    /// What was listed since the watch began anew. It replaces the objects once it is complete.
    listing: Objects,
    level: bool,
}

/// One entry for each watch.
#[derive(Default)]
pub struct Cache(Mutex<Vec<Watch>>);

impl Cache {
    /// Registers a watch; its number goes with all that it says.
    pub fn register(&self, subject: Subject) -> usize {
        let mut watches = self.watches();
        watches.push(Watch { subject, objects: Objects::new(), listing: Objects::new(), level: false });
        watches.len() - 1
    }

    /// Every watch has listed what there is.
    pub fn is_level(&self) -> bool {
        self.watches().iter().all(|watch| watch.level)
    }

    pub fn pipelines(&self) -> Vec<Key> {
        let watches = self.watches();
        let of_pipelines = watches.iter().filter(|watch| watch.subject == Subject::Pipelines);
        of_pipelines.flat_map(|watch| watch.objects.keys().map(|(key, _)| key.clone())).collect()
    }

    pub fn count(&self) -> usize {
        let watches = self.watches();
        watches.iter().filter(|watch| watch.subject == Subject::Pipelines).map(|watch| watch.objects.len()).sum()
    }

    pub fn pipeline(&self, key: &Key) -> Option<Value> {
        self.single(Subject::Pipelines, key)
    }

    /// The Pipeline's objects of all kinds.
    pub fn children(&self, key: &Key) -> Vec<Value> {
        let names = Names { namespace: key.namespace.clone(), pipeline: key.name.clone(), uid: String::new() };
        let secrets = [names.control(), names.control_ca()]
            .into_iter()
            .filter_map(|name| self.single(Subject::Secrets, &Key { namespace: key.namespace.clone(), name }));
        let secrets: Vec<Value> = secrets.collect();
        let watches = self.watches();
        let of_kinds = watches.iter().filter(|watch| watch.subject == Subject::Children);
        let own = of_kinds.flat_map(|watch| {
            let from = watch.objects.range((key.clone(), String::new())..);
            from.take_while(|((owner, _), _)| owner == key).map(|(_, object)| object.clone())
        });
        own.chain(secrets).collect()
    }

    /// The resource version of a Secret, if there is one.
    pub fn secret(&self, key: &Key) -> Option<String> {
        let secret = self.single(Subject::Secrets, key)?;
        secret["metadata"]["resourceVersion"].as_str().map(str::to_owned)
    }

    /// Takes in what a watch says, and tells what follows.
    pub fn take(&self, watch: usize, event: Event<DynamicObject>) -> Vec<Change> {
        let mut watches = self.watches();
        let watch = &mut watches[watch];
        match event {
            Event::Init => watch.listing.clear(),
            Event::InitApply(object) => {
                drop(watch.indexed(object).map(|(at, object)| watch.listing.insert(at, object)))
            }
            Event::InitDone => {
                watch.level = true;
                let before = std::mem::replace(&mut watch.objects, std::mem::take(&mut watch.listing));
                let gone = before.keys().filter(|at| !watch.objects.contains_key(at));
                let new =
                    watch.objects.iter().filter(|(at, object)| before.get(at).is_none_or(|b| watch.differs(b, object)));
                return gone.chain(new.map(|(at, _)| at)).map(|at| watch.change(at)).collect();
            }
            Event::Apply(object) => {
                let Some((at, object)) = watch.indexed(object) else { return Vec::new() };
                let before = watch.objects.insert(at.clone(), object);
                if before.is_none_or(|before| watch.differs(&before, &watch.objects[&at])) {
                    return vec![watch.change(&at)];
                }
            }
            Event::Delete(object) => {
                let Some((at, _)) = watch.indexed(object) else { return Vec::new() };
                watch.objects.remove(&at);
                return vec![watch.change(&at)];
            }
        }
        Vec::new()
    }

    fn single(&self, subject: Subject, key: &Key) -> Option<Value> {
        let watches = self.watches();
        let mut of_subject = watches.iter().filter(|watch| watch.subject == subject);
        of_subject.find_map(|watch| watch.objects.get(&(key.clone(), String::new())).cloned())
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.0.lock().expect("nobody panics while it holds the lock")
    }
}

impl Watch {
    /// Where an object belongs, and what is kept of it. Who wrote which field is of no use here, and is half of it.
    fn indexed(&self, mut object: DynamicObject) -> Option<((Key, String), Value)> {
        object.metadata.managed_fields = None;
        let namespace = object.metadata.namespace.clone()?;
        let name = object.metadata.name.clone()?;
        let at = match self.subject {
            Subject::Pipelines | Subject::Secrets => (Key { namespace, name }, String::new()),
            Subject::Children => {
                let owner = object.metadata.labels.as_ref()?.get(PIPELINE_LABEL)?.clone();
                (Key { namespace, name: owner }, name)
            }
        };
        Some((at, serde_json::to_value(object).ok()?))
    }

    /// Whether a change concerns anybody. Of a Pipeline its status does not: nobody but the operator writes it.
    fn differs(&self, before: &Value, after: &Value) -> bool {
        match self.subject {
            Subject::Pipelines => {
                let fields = ["generation", "deletionTimestamp", "annotations", "finalizers", "uid"];
                fields.iter().any(|field| before["metadata"][field] != after["metadata"][field])
            }
            Subject::Children | Subject::Secrets => {
                before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
            }
        }
    }

    fn change(&self, (key, _): &(Key, String)) -> Change {
        match self.subject {
            Subject::Pipelines => Change::Edit(key.clone()),
            Subject::Children => Change::Child(key.clone()),
            Subject::Secrets => Change::Secret(key.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
