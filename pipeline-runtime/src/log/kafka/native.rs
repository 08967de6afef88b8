//! The client library's C interface, where its Rust wrapper does not reach or costs too much: batches of messages from
//! a partition's own queue, records without an allocation of ours, transactions without the wrapper's floor of 100 ms,
//! look-ups that do not block. All `unsafe` code of the Kafka adapter is in this module.
//!
//! What keeps it sound: a [`Client`] is shared by `Arc`, and everything that points into it holds one; the library's
//! handles may be used from any thread.

#![expect(unsafe_code, reason = "the library is C")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::bindings as c;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

pub mod admin;
pub mod message;
pub mod queue;
pub mod transaction;

const ERROR_TEXT_BYTES: usize = 512;

/// What the library says went wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text} ({code:?})")]
pub struct NativeError {
    pub code: RDKafkaErrorCode,
    pub text: String,
    /// The client instance can do nothing any more.
    pub fatal: bool,
    /// The same call may succeed when it is made again; it resumes where it stood.
    pub retriable: bool,
}

impl NativeError {
    /// Takes an error object over; null is success.
    fn take(error: *mut c::rd_kafka_error_t) -> Result<(), Self> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the pointer is a live error object that is ours alone, destroyed once, after its last use.
        unsafe {
            let taken = Self {
                code: c::rd_kafka_error_code(error).into(),
                text: text(c::rd_kafka_error_string(error)),
                fatal: c::rd_kafka_error_is_fatal(error) != 0,
                retriable: c::rd_kafka_error_is_retriable(error) != 0,
            };
            c::rd_kafka_error_destroy(error);
            Err(taken)
        }
    }

    pub fn of_code(code: RDKafkaErrorCode) -> Self {
        Self { code, text: code.to_string(), fatal: code == RDKafkaErrorCode::Fatal, retriable: false }
    }
}

/// Copies a text of the library's.
///
/// # Safety
/// Null, or a live C string.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller says that it is a live C string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// A name for the library. Names of topics and groups never hold a NUL: Kafka refuses it.
fn c_string(name: &str) -> CString {
    CString::new(name.replace('\0', "")).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Consumer,
    Producer,
}

/// What became of one produced record.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub failed: Option<RDKafkaErrorCode>,
    /// What was given when it was produced.
    pub tag: usize,
    pub offset: i64,
}

/// Something that the library reports on its main queue.
pub enum Event {
    /// Delivery reports; they were handed to the callback.
    Deliveries,
    Error {
        code: RDKafkaErrorCode,
        text: String,
    },
    Other,
}

/// One client instance: its threads, its connections, its queue of events.
pub struct Client {
    rk: NonNull<c::rd_kafka_t>,
    events: NonNull<c::rd_kafka_queue_t>,
    kind: Kind,
}

// SAFETY: "librdkafka is completely thread-safe" (its introduction); the handles are never replaced.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Makes a client. Errors name the setting and never its value, which may be a secret.
    pub fn new(kind: Kind, config: &ClientConfig) -> Result<Arc<Self>, String> {
        let mut config = config.clone();
        // Log lines come as events: a callback would run on the library's threads.
        config.set("log.queue", "true");
        let native = config.create_native_config().map_err(|error| match error {
            KafkaError::ClientConfig(_, description, key, _) => format!("setting {key}: {description}"),
            other => other.to_string(),
        })?;
        let mut error: [c_char; ERROR_TEXT_BYTES] = [0; ERROR_TEXT_BYTES];
        let (library_kind, events) = match kind {
            Kind::Consumer => (c::rd_kafka_type_t::RD_KAFKA_CONSUMER, c::RD_KAFKA_EVENT_ERROR),
            Kind::Producer => (c::rd_kafka_type_t::RD_KAFKA_PRODUCER, c::RD_KAFKA_EVENT_ERROR | c::RD_KAFKA_EVENT_DR),
        };
        // SAFETY: the configuration is alive; `rd_kafka_new` takes it over when it succeeds, and only then, hence the
        // `ManuallyDrop` that is dropped by hand on failure. The buffer is as long as said.
        let rk = unsafe {
            c::rd_kafka_conf_set_events(native.ptr(), events);
            let mut native = ManuallyDrop::new(native);
            let rk = c::rd_kafka_new(library_kind, native.ptr(), error.as_mut_ptr(), error.len());
            if rk.is_null() {
                ManuallyDrop::drop(&mut native);
            }
            rk
        };
        let Some(rk) = NonNull::new(rk) else {
            // SAFETY: the library ends the text with a NUL.
            return Err(unsafe { text(error.as_ptr()) });
        };
        // SAFETY: `rk` is alive. A queue handle counts references; each one that is got is destroyed once.
        let events = unsafe {
            let main = c::rd_kafka_queue_get_main(rk.as_ptr());
            c::rd_kafka_set_log_queue(rk.as_ptr(), main);
            match kind {
                Kind::Producer => main,
                Kind::Consumer => {
                    c::rd_kafka_queue_destroy(main);
                    c::rd_kafka_poll_set_consumer(rk.as_ptr());
                    c::rd_kafka_queue_get_consumer(rk.as_ptr())
                }
            }
        };
        match NonNull::new(events) {
            Some(events) => Ok(Arc::new(Self { rk, events, kind })),
            None => {
                // SAFETY: nothing else points to it.
                unsafe { c::rd_kafka_destroy(rk.as_ptr()) };
                Err("a consumer needs group.id".to_owned())
            }
        }
    }

    fn rk(&self) -> *mut c::rd_kafka_t {
        self.rk.as_ptr()
    }

    /// Waits for an event and takes it. `None`: there was none, or [`Client::wake`] was called.
    pub fn next_event(&self, timeout_ms: i32, deliveries: &mut dyn FnMut(Delivery)) -> Option<Event> {
        // SAFETY: the queue lives as long as `self`. The event is ours, and is destroyed below after its last use.
        let event = NonNull::new(unsafe { c::rd_kafka_queue_poll(self.events.as_ptr(), timeout_ms) })?;
        // SAFETY: the event is alive; which accessors are allowed goes by its type.
        let taken = unsafe {
            match c::rd_kafka_event_type(event.as_ptr()) {
                c::RD_KAFKA_EVENT_DR => {
                    take_deliveries(event, deliveries);
                    Event::Deliveries
                }
                c::RD_KAFKA_EVENT_ERROR => Event::Error {
                    code: c::rd_kafka_event_error(event.as_ptr()).into(),
                    text: text(c::rd_kafka_event_error_string(event.as_ptr())),
                },
                c::RD_KAFKA_EVENT_LOG => {
                    write_log(event);
                    Event::Other
                }
                _ => Event::Other,
            }
        };
        // SAFETY: destroyed once; deliveries were copied out.
        unsafe { c::rd_kafka_event_destroy(event.as_ptr()) };
        Some(taken)
    }

    /// Makes a waiting [`Client::next_event`] return, or the next one.
    pub fn wake(&self) {
        // SAFETY: the queue lives as long as `self`.
        unsafe { c::rd_kafka_queue_yield(self.events.as_ptr()) };
    }

    /// The id of the cluster, once a broker has told it.
    pub fn cluster_id(&self, timeout_ms: i32) -> Option<String> {
        // SAFETY: the returned string is ours, to be freed by the library's own allocator.
        unsafe {
            let id = c::rd_kafka_clusterid(self.rk(), timeout_ms);
            let owned = (!id.is_null()).then(|| text(id));
            if !id.is_null() {
                c::rd_kafka_mem_free(self.rk(), id.cast());
            }
            owned
        }
    }

    /// The error that made the client unusable, if one did.
    pub fn fatal_error(&self) -> Option<NativeError> {
        let mut buffer: [c_char; ERROR_TEXT_BYTES] = [0; ERROR_TEXT_BYTES];
        // SAFETY: the buffer is as long as said, and the library ends the text with a NUL.
        let (code, text) = unsafe {
            let code = c::rd_kafka_fatal_error(self.rk(), buffer.as_mut_ptr(), buffer.len());
            (code, text(buffer.as_ptr()))
        };
        let fatal = code != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
        fatal.then(|| NativeError { code: code.into(), text, fatal: true, retriable: false })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A consumer that never joined a group has nothing to tell it; saying goodbye could wait for a dead broker.
        let flags: c_int = match self.kind {
            Kind::Consumer => c::RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE,
            Kind::Producer => 0,
        };
        // SAFETY: whatever points into the client holds an `Arc`, so nothing does any more.
        unsafe {
            if self.kind == Kind::Producer {
                c::rd_kafka_purge(self.rk(), (c::RD_KAFKA_PURGE_F_QUEUE | c::RD_KAFKA_PURGE_F_INFLIGHT) as c_int);
            }
            c::rd_kafka_queue_destroy(self.events.as_ptr());
            c::rd_kafka_destroy_flags(self.rk(), flags);
        }
    }
}

/// # Safety
/// A live event of type DR.
unsafe fn take_deliveries(event: NonNull<c::rd_kafka_event_t>, deliveries: &mut dyn FnMut(Delivery)) {
    loop {
        // SAFETY: the caller says that the event is alive; messages live as long as it.
        let message = unsafe { c::rd_kafka_event_message_next(event.as_ptr()).as_ref() };
        let Some(message) = message else { return };
        let failed = message.err != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
        deliveries(Delivery {
            failed: failed.then(|| message.err.into()),
            tag: message._private.addr(),
            offset: message.offset,
        });
    }
}

/// # Safety
/// A live event of type LOG.
unsafe fn write_log(event: NonNull<c::rd_kafka_event_t>) {
    let (mut facility, mut line, mut level): (*const c_char, *const c_char, c_int) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the out-pointers are good; the strings live as long as the event.
    let (facility, line) = unsafe {
        if c::rd_kafka_event_log(event.as_ptr(), &mut facility, &mut line, &mut level) != 0 {
            return;
        }
        (text(facility), text(line))
    };
    // Syslog's levels. Lost connections come at 3 and are gone over by themselves.
    match level {
        0..=2 => tracing::error!(facility, "{line}"),
        3 | 4 => tracing::warn!(facility, "{line}"),
        5 | 6 => tracing::info!(facility, "{line}"),
        _ => tracing::debug!(facility, "{line}"),
    }
}
