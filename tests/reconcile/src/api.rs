//! The API server: objects as JSON, with uids, versions, and writes that fail when they were decided over another version.

use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::decision::Action;
use serde_json::{Value, json};

/// Kind and name: there is one namespace.
pub type Key = (String, String);

/// What a watch tells: the name, and the object unless it is gone.
pub type Change = (String, Option<Rc<Value>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Conflict,
    Forbidden,
    Missing,
}

/// Objects at some time, for a restore.
pub type Snapshot = BTreeMap<Key, Rc<Value>>;

#[derive(Default)]
pub struct Api {
    objects: Snapshot,
    /// All changes of each kind, for the watches.
    pub log: BTreeMap<String, Vec<Change>>,
    version: u64,
    uids: u64,
    pub now_ms: i64,
    /// How long a pod has from when it was told to end.
    pub grace_ms: i64,
    pub namespace_ends: bool,
}

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value["metadata"][field].as_str().unwrap_or_default()
}

pub fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name].as_str().unwrap_or_default()
}

pub fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

fn key(object: &Value) -> Key {
    (kind(object).to_owned(), text(object, "name").to_owned())
}

impl Api {
    pub fn new(now_ms: i64) -> Self {
        Self { now_ms, ..Self::default() }
    }

    /// Of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.now_ms)
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<&Rc<Value>> {
        self.objects.get(&(kind.to_owned(), name.to_owned()))
    }

    pub fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Rc<Value>> {
        self.objects.iter().filter(move |((k, _), _)| k == kind).map(|(_, object)| object)
    }

    pub fn all(&self) -> impl Iterator<Item = &Rc<Value>> {
        self.objects.values()
    }

    fn store(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let (key, object) = (key(&object), Rc::new(object));
        self.log.entry(key.0.clone()).or_default().push((key.1.clone(), Some(Rc::clone(&object))));
        self.objects.insert(key, object);
    }

    fn remove(&mut self, key: &Key) {
        self.objects.remove(key);
        self.log.entry(key.0.clone()).or_default().push((key.1.clone(), None));
    }

    pub fn create(&mut self, mut object: Value) -> Result<(), Refusal> {
        if self.namespace_ends {
            return Err(Refusal::Forbidden);
        }
        if self.objects.contains_key(&key(&object)) {
            return Err(Refusal::Conflict);
        }
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!(self.now());
        self.store(object);
        Ok(())
    }

    /// Changes an object that is there, as its own controllers do; nothing is written when nothing changes.
    pub fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let Some(before) = self.get(kind, name).cloned() else { return };
        let mut after = (*before).clone();
        change(&mut after);
        if after["spec"] != before["spec"] {
            after["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        }
        if after == *before {
            return;
        }
        let finalizers = after["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        if after["metadata"]["deletionTimestamp"].is_string() && finalizers == 0 && kind != "Pod" {
            return self.remove(&key(&after));
        }
        self.store(after);
    }

    /// Whether an apply would be done.
    pub fn admits(&self, object: &Value, over: Option<&str>) -> Result<(), Refusal> {
        let (kind, name) = key(object);
        match (self.get(&kind, &name), over) {
            (None, None) if self.namespace_ends => Err(Refusal::Forbidden),
            (None, None) => Ok(()),
            (None, Some(_)) => Err(Refusal::Missing),
            (Some(there), over) if Some(text(there, "resourceVersion")) != over => Err(Refusal::Conflict),
            (Some(there), _) if there["immutable"] == true && there["data"] != object["data"] => {
                Err(Refusal::Forbidden)
            }
            (Some(_), _) => Ok(()),
        }
    }

    /// Server-side apply of an object of ours.
    fn apply(&mut self, object: &Value, over: Option<&str>) -> Result<(), Refusal> {
        self.admits(object, over)?;
        let (kind, name) = key(object);
        if over.is_none() {
            return self.create(object.clone());
        }
        self.change(&kind, &name, |stored| merge(stored, object));
        Ok(())
    }

    /// Writes without looking at what is there: what no operator of ours does.
    pub fn force(&mut self, object: &Value) -> Result<(), Refusal> {
        let (kind, name) = key(object);
        match self.get(&kind, &name).map(|there| text(there, "resourceVersion").to_owned()) {
            Some(version) => self.apply(object, Some(&version)),
            None => self.create(object.clone()),
        }
    }

    pub fn delete(&mut self, kind: &str, name: &str, uid: Option<&str>) -> Result<(), Refusal> {
        let there = self.get(kind, name).ok_or(Refusal::Missing)?;
        if uid.is_some_and(|uid| text(there, "uid") != uid) {
            return Err(Refusal::Conflict);
        }
        let held = there["metadata"]["finalizers"].as_array().is_some_and(|names| !names.is_empty());
        if !held && kind != "Pod" {
            self.remove(&(kind.to_owned(), name.to_owned()));
        } else if !there["metadata"]["deletionTimestamp"].is_string() {
            let end = Timestamp::from_ms(self.now_ms + if kind == "Pod" { self.grace_ms } else { 0 });
            self.change(kind, name, |object| object["metadata"]["deletionTimestamp"] = json!(end));
        }
        Ok(())
    }

    /// The kubelet's last word on a pod.
    pub fn forget(&mut self, kind: &str, name: &str) {
        self.remove(&(kind.to_owned(), name.to_owned()));
    }

    /// Carries out what concerns the API server alone.
    pub fn carry_out(&mut self, pipeline: &str, action: &Action) -> Result<(), Refusal> {
        match action {
            Action::Put { object, over } => self.apply(object, over.as_deref()),
            Action::Delete { kind, name, uid, .. } => self.delete(kind, name, Some(uid)),
            Action::SetFinalizers { savepoint, finalizers, over } => {
                let (kind, name) = match savepoint {
                    Some(name) => ("Savepoint", name.as_str()),
                    None => ("Pipeline", pipeline),
                };
                let there = self.get(kind, name).ok_or(Refusal::Missing)?;
                if text(there, "resourceVersion") != over {
                    return Err(Refusal::Conflict);
                }
                self.change(kind, name, |object| object["metadata"]["finalizers"] = json!(finalizers));
                Ok(())
            }
            Action::Scale { replicas, over } => {
                let there = self.get("Pipeline", pipeline).ok_or(Refusal::Missing)?;
                if text(there, "resourceVersion") != over {
                    return Err(Refusal::Conflict);
                }
                self.change("Pipeline", pipeline, |object| object["spec"]["replicas"] = json!(replicas));
                Ok(())
            }
            Action::SavepointStatus { name, uid, status, over } => {
                self.write_status("Savepoint", (name, uid, over), json!(status))
            }
            Action::BackfillStatus { name, uid, status, over } => {
                self.write_status("Backfill", (name, uid, over), json!(status))
            }
            Action::Certify(_) | Action::Push { .. } | Action::LetGo { .. } | Action::Pace { .. } => Ok(()),
        }
    }

    fn write_status(&mut self, kind: &str, of: (&str, &str, &str), status: Value) -> Result<(), Refusal> {
        let (name, uid, over) = of;
        let there = self.get(kind, name).ok_or(Refusal::Missing)?;
        if text(there, "resourceVersion") != over || text(there, "uid") != uid {
            return Err(Refusal::Conflict);
        }
        self.change(kind, name, |object| object["status"] = status);
        Ok(())
    }

    pub fn snapshot(&self) -> Snapshot {
        self.objects.clone()
    }

    /// What was there then is there again, with the versions of then.
    pub fn restore(&mut self, snapshot: &Snapshot) {
        let gone: Vec<Key> = self.objects.keys().filter(|key| !snapshot.contains_key(*key)).cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
        for (key, object) in snapshot {
            if self.objects.get(key) != Some(object) {
                self.log.entry(key.0.clone()).or_default().push((key.1.clone(), Some(Rc::clone(object))));
            }
        }
        self.objects = snapshot.clone();
    }
}

/// What an apply changes: labels and annotations one by one, all else field by field.
fn merge(stored: &mut Value, object: &Value) {
    for (field, value) in object.as_object().into_iter().flatten() {
        if field != "metadata" {
            stored[field] = value.clone();
        }
    }
    for (field, value) in object["metadata"].as_object().into_iter().flatten() {
        match value {
            Value::Object(entries) => entries.iter().for_each(|(name, value)| {
                stored["metadata"][field][name] = value.clone();
            }),
            value => stored["metadata"][field] = value.clone(),
        }
    }
}
