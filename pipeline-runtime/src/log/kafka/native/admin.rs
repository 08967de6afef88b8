//! Requests of an administrator that do not block: they are asked here and answered through a queue.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as c;
use rdkafka::types::RDKafkaErrorCode;

use super::queue::{Signal, register};
use super::{Client, c_string, text};

/// Where in a partition. Timestamps are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// The first record that is there.
    Earliest,
    /// Behind the last record that a `read_committed` reader may see.
    LastStable,
    /// Behind the last record that is replicated.
    HighWatermark,
    /// The first record that is not older; none gives -1.
    Timestamp(i64),
}

impl Spec {
    fn raw(self) -> i64 {
        match self {
            Self::Earliest => i64::from(c::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_EARLIEST as i32),
            Self::LastStable | Self::HighWatermark => {
                i64::from(c::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_LATEST as i32)
            }
            Self::Timestamp(ms) => ms,
        }
    }
}

/// A partition and what was said of it.
#[derive(Clone, Debug)]
pub struct PartitionOffset {
    pub topic: String,
    pub partition: i32,
    pub offset: Result<i64, RDKafkaErrorCode>,
}

/// What the brokers let us do with a topic or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Read,
    Write,
    Delete,
    Describe,
    /// Nothing that we ever need.
    Other,
}

/// A topic as the brokers describe it.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Base64, as Kafka's own tools print it.
    pub id: Option<String>,
    pub partitions: i32,
    /// Partitions that nobody leads.
    pub leaderless: Vec<i32>,
    /// Empty: the brokers do not say.
    pub rights: BTreeSet<Right>,
}

#[derive(Debug)]
pub enum Answer {
    Offsets(Vec<PartitionOffset>),
    /// The new start of each partition.
    Deleted(Vec<PartitionOffset>),
    Topics(Vec<(String, Result<Description, RDKafkaErrorCode>)>),
    Groups(Vec<Result<BTreeSet<Right>, RDKafkaErrorCode>>),
    Cluster {
        brokers: usize,
    },
    Failed {
        code: RDKafkaErrorCode,
        text: String,
    },
}

/// A queue of answers.
pub struct AdminQueue {
    queue: NonNull<c::rd_kafka_queue_t>,
    /// Kept for the callback that points to it.
    signal: Option<Arc<Signal>>,
    client: Arc<Client>,
}

// SAFETY: the library's queues may be used from any thread.
unsafe impl Send for AdminQueue {}

/// Options of one request, freed with it.
struct Options(NonNull<c::rd_kafka_AdminOptions_t>);

impl Options {
    /// The answer shall say what we may do.
    fn with_rights(&self) {
        // SAFETY: the options are alive; the error, if there is one, is ours. Without it the brokers say less.
        unsafe {
            let error = c::rd_kafka_AdminOptions_set_include_authorized_operations(self.0.as_ptr(), 1);
            if !error.is_null() {
                c::rd_kafka_error_destroy(error);
            }
        }
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once; requests copy them.
        unsafe { c::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) };
    }
}

impl AdminQueue {
    pub fn new(client: &Arc<Client>, signal: Option<Arc<Signal>>) -> Option<Self> {
        // SAFETY: the client is alive and is held by what is returned.
        let queue = NonNull::new(unsafe { c::rd_kafka_queue_new(client.rk()) })?;
        if let Some(signal) = &signal {
            // SAFETY: the queue is alive, and the signal is held as long as it.
            unsafe { register(queue, Some(signal)) };
        }
        Some(Self { queue, signal, client: Arc::clone(client) })
    }

    /// `tag` comes back with the answer.
    fn options(&self, operation: c::rd_kafka_admin_op_t, timeout_ms: i32, tag: usize) -> Option<Options> {
        // SAFETY: the client is alive; the options are ours. A timeout that is out of range leaves the default. The
        // tag is a number in a pointer's clothes, which the library hands back and never follows.
        unsafe {
            let options = Options(NonNull::new(c::rd_kafka_AdminOptions_new(self.client.rk(), operation))?);
            let mut error: [c_char; 128] = [0; 128];
            c::rd_kafka_AdminOptions_set_request_timeout(
                options.0.as_ptr(),
                timeout_ms as c_int,
                error.as_mut_ptr(),
                error.len(),
            );
            c::rd_kafka_AdminOptions_set_opaque(options.0.as_ptr(), ptr::without_provenance_mut(tag));
            Some(options)
        }
    }

    /// Asks for one offset of each partition; one kind of offset per request.
    pub fn ask_offsets(&self, partitions: &[(&str, i32)], spec: Spec, timeout_ms: i32, tag: usize) {
        let Some(options) = self.options(c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS, timeout_ms, tag) else {
            return;
        };
        let isolation = match spec {
            Spec::HighWatermark => c::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED,
            _ => c::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
        };
        // SAFETY: everything is alive; names, list and options are copied, and the list is freed here.
        unsafe {
            let error = c::rd_kafka_AdminOptions_set_isolation_level(options.0.as_ptr(), isolation);
            if !error.is_null() {
                c::rd_kafka_error_destroy(error);
            }
            let list = c::rd_kafka_topic_partition_list_new(partitions.len() as c_int);
            for (topic, partition) in partitions {
                let name = c_string(topic);
                let element = c::rd_kafka_topic_partition_list_add(list, name.as_ptr(), *partition);
                (*element).offset = spec.raw();
            }
            c::rd_kafka_ListOffsets(self.client.rk(), list, options.0.as_ptr(), self.queue.as_ptr());
            c::rd_kafka_topic_partition_list_destroy(list);
        }
    }

    /// Asks for the records below the listed offsets to be deleted.
    pub fn ask_delete(&self, below: &TopicPartitionList, timeout_ms: i32, tag: usize) {
        let Some(options) = self.options(c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DELETERECORDS, timeout_ms, tag)
        else {
            return;
        };
        // SAFETY: everything is alive; the request copies list and options, and the request object is freed here.
        unsafe {
            let mut request = c::rd_kafka_DeleteRecords_new(below.ptr());
            c::rd_kafka_DeleteRecords(self.client.rk(), &mut request, 1, options.0.as_ptr(), self.queue.as_ptr());
            c::rd_kafka_DeleteRecords_destroy(request);
        }
    }

    /// Asks for topics' ids and partitions. (A plain metadata request might create what it asks for.)
    pub fn ask_topics(&self, names: &[&str], timeout_ms: i32, tag: usize) {
        let Some(options) = self.options(c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, timeout_ms, tag)
        else {
            return;
        };
        options.with_rights();
        let names: Vec<_> = names.iter().map(|n| c_string(n)).collect();
        let mut pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        // SAFETY: everything is alive; the request copies names and options, and the collection is freed here.
        unsafe {
            let topics = c::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            c::rd_kafka_DescribeTopics(self.client.rk(), topics, options.0.as_ptr(), self.queue.as_ptr());
            c::rd_kafka_TopicCollection_destroy(topics);
        }
    }

    /// Asks what we may do with consumer groups, which need not be there.
    pub fn ask_groups(&self, names: &[&str], timeout_ms: i32, tag: usize) {
        let operation = c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
        let Some(options) = self.options(operation, timeout_ms, tag) else { return };
        options.with_rights();
        let names: Vec<_> = names.iter().map(|n| c_string(n)).collect();
        let mut pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let (first, count) = (pointers.as_mut_ptr(), pointers.len());
        // SAFETY: everything is alive; the request copies names and options.
        unsafe {
            let queue = self.queue.as_ptr();
            c::rd_kafka_DescribeConsumerGroups(self.client.rk(), first, count, options.0.as_ptr(), queue);
        }
    }

    /// Asks who is in the cluster.
    pub fn ask_cluster(&self, timeout_ms: i32, tag: usize) {
        let operation = c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECLUSTER;
        let Some(options) = self.options(operation, timeout_ms, tag) else { return };
        // SAFETY: everything is alive; the request copies the options.
        unsafe { c::rd_kafka_DescribeCluster(self.client.rk(), options.0.as_ptr(), self.queue.as_ptr()) };
    }

    /// Waits for the next answer, which comes with its request's tag. `None`: none came in time.
    pub fn next(&self, timeout_ms: i32) -> Option<(usize, Answer)> {
        // SAFETY: the queue is alive; the event is ours and is destroyed after everything was copied out of it.
        unsafe {
            let event = NonNull::new(c::rd_kafka_queue_poll(self.queue.as_ptr(), timeout_ms))?;
            let answer = (c::rd_kafka_event_opaque(event.as_ptr()).addr(), read_answer(event));
            c::rd_kafka_event_destroy(event.as_ptr());
            Some(answer)
        }
    }
}

impl Client {
    /// Asks any broker that answers which brokers there are and which one controls them. A request to the controller goes to
    /// the one that was named last, also while that one stands still.
    pub fn refresh_brokers(&self, timeout_ms: i32) {
        // SAFETY: the client is alive; no topic is asked for.
        unsafe { self.refresh(ptr::null_mut(), timeout_ms) };
    }

    /// Asks who leads a topic's partitions. Look-ups go by what is known of that, and say so when it is out of date
    /// without asking anew by themselves.
    pub fn refresh_leaders(&self, topic: &str, timeout_ms: i32) {
        let name = c_string(topic);
        // SAFETY: everything is alive; the topic is ours and is freed here.
        unsafe {
            let topic = c::rd_kafka_topic_new(self.rk(), name.as_ptr(), ptr::null_mut());
            if topic.is_null() {
                return;
            }
            self.refresh(topic, timeout_ms);
            c::rd_kafka_topic_destroy(topic);
        }
    }

    /// # Safety
    /// The topic is alive, or null.
    unsafe fn refresh(&self, topic: *mut c::rd_kafka_topic_t, timeout_ms: i32) {
        let mut metadata: *const c::rd_kafka_metadata = ptr::null();
        // SAFETY: everything is alive; the metadata is ours and is freed here.
        unsafe {
            c::rd_kafka_metadata(self.rk(), 0, topic, &mut metadata, timeout_ms);
            if !metadata.is_null() {
                c::rd_kafka_metadata_destroy(metadata);
            }
        }
    }
}

impl Drop for AdminQueue {
    fn drop(&mut self) {
        // SAFETY: alive until here. An answer that is still to come finds no queue and is dropped by the library.
        unsafe {
            if self.signal.is_some() {
                register(self.queue, None);
            }
            c::rd_kafka_queue_destroy(self.queue.as_ptr());
        }
    }
}

/// # Safety
/// A live event.
unsafe fn read_answer(event: NonNull<c::rd_kafka_event_t>) -> Answer {
    let event = event.as_ptr();
    // SAFETY: results live as long as the event, and the accessor goes by the event's type.
    unsafe {
        let err = c::rd_kafka_event_error(event);
        if err != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Answer::Failed { code: err.into(), text: text(c::rd_kafka_event_error_string(event)) };
        }
        match c::rd_kafka_event_type(event) {
            c::RD_KAFKA_EVENT_LISTOFFSETS_RESULT => {
                let mut count = 0;
                let result = c::rd_kafka_event_ListOffsets_result(event);
                let infos = c::rd_kafka_ListOffsets_result_infos(result, &mut count);
                let element = |info: &*const c::rd_kafka_ListOffsetsResultInfo_t| {
                    read_element(c::rd_kafka_ListOffsetsResultInfo_topic_partition(*info))
                };
                Answer::Offsets(elements(infos, count).iter().map(element).collect())
            }
            c::RD_KAFKA_EVENT_DELETERECORDS_RESULT => {
                let result = c::rd_kafka_event_DeleteRecords_result(event);
                let list = c::rd_kafka_DeleteRecords_result_offsets(result);
                let count = usize::try_from((*list).cnt).unwrap_or(0);
                let all = elements((*list).elems, count);
                Answer::Deleted(all.iter().map(|e| read_element(ptr::from_ref(e))).collect())
            }
            c::RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT => {
                let mut count = 0;
                let result = c::rd_kafka_event_DescribeTopics_result(event);
                let topics = c::rd_kafka_DescribeTopics_result_topics(result, &mut count);
                let named = |topic: &*const c::rd_kafka_TopicDescription_t| {
                    (text(c::rd_kafka_TopicDescription_name(*topic)), read_topic(*topic))
                };
                Answer::Topics(elements(topics, count).iter().map(named).collect())
            }
            c::RD_KAFKA_EVENT_DESCRIBECONSUMERGROUPS_RESULT => {
                let mut count = 0;
                let result = c::rd_kafka_event_DescribeConsumerGroups_result(event);
                let groups = c::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count);
                let rights = |group: &*const c::rd_kafka_ConsumerGroupDescription_t| {
                    let (error, mut count) = (c::rd_kafka_ConsumerGroupDescription_error(*group), 0);
                    failure(error)?;
                    let operations = c::rd_kafka_ConsumerGroupDescription_authorized_operations(*group, &mut count);
                    Ok(read_rights(operations, count))
                };
                Answer::Groups(elements(groups, count).iter().map(rights).collect())
            }
            c::RD_KAFKA_EVENT_DESCRIBECLUSTER_RESULT => {
                let mut brokers = 0;
                let result = c::rd_kafka_event_DescribeCluster_result(event);
                c::rd_kafka_DescribeCluster_result_nodes(result, &mut brokers);
                Answer::Cluster { brokers }
            }
            kind => Answer::Failed {
                code: RDKafkaErrorCode::Fail,
                text: format!("an answer of type {kind} to a request that was not made"),
            },
        }
    }
}

/// # Safety
/// `count` elements that live as long as `'a`, or null.
unsafe fn elements<'a, T>(start: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's.
    if start.is_null() || count == 0 { &[] } else { unsafe { slice::from_raw_parts(start, count) } }
}

/// # Safety
/// A live element of a partition list.
unsafe fn read_element(element: *const c::rd_kafka_topic_partition_t) -> PartitionOffset {
    // SAFETY: the caller's.
    unsafe {
        let failed = (*element).err != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
        // Where the library has lost the broker meanwhile it leaves what stood there before it asked, without an error.
        let unanswered = (*element).offset == i64::from(c::RD_KAFKA_OFFSET_INVALID);
        PartitionOffset {
            topic: text((*element).topic),
            partition: (*element).partition,
            offset: match (failed, unanswered) {
                (true, _) => Err((*element).err.into()),
                (false, true) => Err(RDKafkaErrorCode::BrokerTransportFailure),
                (false, false) => Ok((*element).offset),
            },
        }
    }
}

/// # Safety
/// Null, or a live error object that stays its owner's.
unsafe fn failure(error: *const c::rd_kafka_error_t) -> Result<(), RDKafkaErrorCode> {
    // SAFETY: the caller's; null is no error to the library.
    let code = unsafe { c::rd_kafka_error_code(error) };
    if error.is_null() || code == c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
        Ok(())
    } else {
        Err(code.into())
    }
}

/// # Safety
/// `count` live operations, or null.
unsafe fn read_rights(operations: *const c::rd_kafka_AclOperation_t, count: usize) -> BTreeSet<Right> {
    use c::rd_kafka_AclOperation_t as Operation;
    // SAFETY: the caller's.
    let operations = unsafe { elements(operations, count) };
    let right = |operation: &Operation| match *operation {
        Operation::RD_KAFKA_ACL_OPERATION_READ => Right::Read,
        Operation::RD_KAFKA_ACL_OPERATION_WRITE => Right::Write,
        Operation::RD_KAFKA_ACL_OPERATION_DELETE => Right::Delete,
        Operation::RD_KAFKA_ACL_OPERATION_DESCRIBE => Right::Describe,
        _ => Right::Other,
    };
    operations.iter().map(right).collect()
}

/// # Safety
/// A live description.
unsafe fn read_topic(topic: *const c::rd_kafka_TopicDescription_t) -> Result<Description, RDKafkaErrorCode> {
    // SAFETY: the caller's; what it points to lives as long as it, and the copied id is freed by us.
    unsafe {
        failure(c::rd_kafka_TopicDescription_error(topic))?;
        let (mut count, mut operations) = (0, 0);
        let partitions = elements(c::rd_kafka_TopicDescription_partitions(topic, &mut count), count);
        let leaderless = partitions.iter().filter(|p| {
            let leader = c::rd_kafka_TopicPartitionInfo_leader(**p);
            leader.is_null() || c::rd_kafka_Node_id(leader) < 0
        });
        let id = c::rd_kafka_TopicDescription_topic_id(topic);
        let id = (!id.is_null()).then(|| text(c::rd_kafka_Uuid_base64str(id)));
        let rights = c::rd_kafka_TopicDescription_authorized_operations(topic, &mut operations);
        Ok(Description {
            id: id.filter(|i| !i.is_empty()),
            partitions: i32::try_from(partitions.len()).unwrap_or(i32::MAX),
            leaderless: leaderless.map(|p| c::rd_kafka_TopicPartitionInfo_partition(*p)).collect(),
            rights: read_rights(rights, operations),
        })
    }
}
