//! Producing, and the calls that make a transaction. All of them block until `timeout_ms` at most, as far as the library
//! keeps its word.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as c;
use rdkafka::types::RDKafkaErrorCode;

use super::{Client, NativeError, c_string};
use crate::log::OutRecord;

/// A topic that a producer writes to, looked up once.
pub struct Topic {
    topic: NonNull<c::rd_kafka_topic_t>,
    client: Arc<Client>,
}

// SAFETY: the library's topic objects may be used from any thread.
unsafe impl Send for Topic {}

/// Fields of a record besides its headers.
const FIELDS: usize = 7;

impl Topic {
    pub fn new(client: &Arc<Client>, name: &str) -> Result<Self, NativeError> {
        let name = c_string(name);
        // SAFETY: both are alive; without a configuration of its own the topic takes the client's.
        let topic = unsafe { c::rd_kafka_topic_new(client.rk(), name.as_ptr(), ptr::null_mut()) };
        match NonNull::new(topic) {
            Some(topic) => Ok(Self { topic, client: Arc::clone(client) }),
            None => Err(NativeError::of_code(RDKafkaErrorCode::InvalidArgument)),
        }
    }

    /// Queues a record, whose bytes are copied. `tag` comes back with its delivery.
    pub fn produce(&self, record: &OutRecord<'_>, tag: usize) -> Result<(), NativeError> {
        let names: Vec<CString> = record.headers.iter().map(|h| c_string(&h.name)).collect();
        let fields = self.fields(record, tag);
        // SAFETY: everything that the fields point to is alive; the library copies all of it.
        let error = unsafe {
            if record.headers.is_empty() {
                c::rd_kafka_produceva(self.client.rk(), fields.as_ptr(), fields.len())
            } else {
                let mut all = fields.to_vec();
                all.extend(record.headers.iter().zip(&names).map(|(header, name)| {
                    let mut field = blank(c::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADER);
                    field.u.header = c::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_2 {
                        name: name.as_ptr(),
                        val: header.value.as_ptr().cast(),
                        size: header.value.len() as isize,
                    };
                    field
                }));
                c::rd_kafka_produceva(self.client.rk(), all.as_ptr(), all.len())
            }
        };
        NativeError::take(error)
    }

    fn fields(&self, record: &OutRecord<'_>, tag: usize) -> [c::rd_kafka_vu_t; FIELDS] {
        use c::rd_kafka_vtype_t as t;
        let mut fields = [
            blank(t::RD_KAFKA_VTYPE_RKT),
            blank(t::RD_KAFKA_VTYPE_PARTITION),
            blank(t::RD_KAFKA_VTYPE_MSGFLAGS),
            blank(t::RD_KAFKA_VTYPE_KEY),
            blank(t::RD_KAFKA_VTYPE_VALUE),
            blank(t::RD_KAFKA_VTYPE_TIMESTAMP),
            blank(t::RD_KAFKA_VTYPE_OPAQUE),
        ];
        fields[0].u.rkt = self.topic.as_ptr();
        fields[1].u.i32_ = record.partition.0;
        fields[2].u.i = c::RD_KAFKA_MSG_F_COPY as c_int;
        fields[3].u.mem = memory(record.key);
        fields[4].u.mem = memory(record.value);
        // 0 is "now" to the library, so the first millisecond of 1970 is written as the second.
        fields[5].u.i64_ = record.timestamp_ms.map_or(0, |ms| if ms == 0 { 1 } else { ms });
        fields[6].u.ptr = ptr::without_provenance_mut(tag);
        fields
    }
}

fn blank(kind: c::rd_kafka_vtype_t) -> c::rd_kafka_vu_t {
    // SAFETY: all zeroes is a value of this plain union.
    let mut field: c::rd_kafka_vu_t = unsafe { mem::zeroed() };
    field.vtype = kind;
    field
}

/// Null is absent to Kafka, and an empty slice is not.
fn memory(bytes: Option<&[u8]>) -> c::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
    let (start, size) = bytes.map_or((ptr::null(), 0), |b| (b.as_ptr(), b.len()));
    c::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 { ptr: start.cast_mut().cast::<c_void>(), size }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: alive until here, and its client too.
        unsafe { c::rd_kafka_topic_destroy(self.topic.as_ptr()) };
    }
}

/// Names the group that offsets are stored for. Without a member and a generation: nobody fences by group here.
pub struct GroupMetadata(NonNull<c::rd_kafka_consumer_group_metadata_t>);

// SAFETY: plain memory that the library only reads.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    pub fn new(group: &str) -> Option<Self> {
        let group: CString = c_string(group);
        let name: *const c_char = group.as_ptr();
        // SAFETY: the name is alive and is copied.
        NonNull::new(unsafe { c::rd_kafka_consumer_group_metadata_new(name) }).map(Self)
    }
}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { c::rd_kafka_consumer_group_metadata_destroy(self.0.as_ptr()) };
    }
}

impl Client {
    /// Takes the client's transactional id: fences whoever had it, and ends what was open under it.
    pub fn init_transactions(&self, timeout_ms: i32) -> Result<(), NativeError> {
        // SAFETY: alive.
        NativeError::take(unsafe { c::rd_kafka_init_transactions(self.rk(), timeout_ms) })
    }

    /// Local: nothing is sent before the first record is.
    pub fn begin_transaction(&self) -> Result<(), NativeError> {
        // SAFETY: alive.
        NativeError::take(unsafe { c::rd_kafka_begin_transaction(self.rk()) })
    }

    /// Sends what lingers, and waits until every record was delivered or has failed, and somebody has taken the
    /// reports from [`Client::next_event`].
    pub fn flush(&self, timeout_ms: i32) -> Result<(), NativeError> {
        // SAFETY: alive.
        let err = unsafe { c::rd_kafka_flush(self.rk(), timeout_ms) };
        match err {
            c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            err => Err(NativeError::of_code(err.into())),
        }
    }

    pub fn send_offsets(
        &self,
        offsets: &TopicPartitionList,
        group: &GroupMetadata,
        timeout_ms: i32,
    ) -> Result<(), NativeError> {
        // SAFETY: all alive; the library copies both.
        let error =
            unsafe { c::rd_kafka_send_offsets_to_transaction(self.rk(), offsets.ptr(), group.0.as_ptr(), timeout_ms) };
        NativeError::take(error)
    }

    pub fn commit_transaction(&self, timeout_ms: i32) -> Result<(), NativeError> {
        // SAFETY: alive.
        NativeError::take(unsafe { c::rd_kafka_commit_transaction(self.rk(), timeout_ms) })
    }

    pub fn abort_transaction(&self, timeout_ms: i32) -> Result<(), NativeError> {
        // SAFETY: alive.
        NativeError::take(unsafe { c::rd_kafka_abort_transaction(self.rk(), timeout_ms) })
    }
}
