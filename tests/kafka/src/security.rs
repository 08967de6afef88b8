//! Users and what they may do, as an administrator handles them. The client library's wrapper does not reach there.

#![expect(unsafe_code, reason = "the library is C")]

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use anyhow::{Context, bail, ensure};
use rdkafka::bindings as c;

use crate::{DEADLINE, Kafka};

pub use c::rd_kafka_AclOperation_t as Operation;
pub use c::rd_kafka_ResourceType_t as Resource;

const ERROR_BYTES: usize = 512;
const ITERATIONS: i32 = 4096;

/// Something that is allowed to a user.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    pub operation: Operation,
    pub resource: Resource,
    pub name: &'a str,
    /// `name` is what the names of the resources start with.
    pub prefixed: bool,
}

impl Kafka {
    /// Lets a user (as in `User:alice`) do something. The brokers hear of it within moments.
    pub fn grant(&self, principal: &str, grants: &[Grant<'_>]) -> anyhow::Result<()> {
        let principal = CString::new(principal)?;
        let host = CString::new("*")?;
        let mut bindings = Vec::new();
        for Grant { operation, resource, name, prefixed } in grants {
            let name = CString::new(*name)?;
            let pattern = if *prefixed {
                c::rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_PREFIXED
            } else {
                c::rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_LITERAL
            };
            let allow = c::rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW;
            let mut error: [c_char; ERROR_BYTES] = [0; ERROR_BYTES];
            // SAFETY: all strings are alive and are copied; the buffer is as long as said.
            let binding = unsafe {
                c::rd_kafka_AclBinding_new(
                    *resource,
                    name.as_ptr(),
                    pattern,
                    principal.as_ptr(),
                    host.as_ptr(),
                    *operation,
                    allow,
                    error.as_mut_ptr(),
                    error.len(),
                )
            };
            // SAFETY: the library ends the text with a NUL.
            ensure!(!binding.is_null(), "{}", unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy());
            bindings.push(binding);
        }
        // SAFETY: client, queue and bindings are alive; the request copies the bindings, which are destroyed here.
        let asked = self.ask(|rk, queue| unsafe {
            c::rd_kafka_CreateAcls(rk, bindings.as_mut_ptr(), bindings.len(), ptr::null(), queue);
            bindings.iter().for_each(|binding| c::rd_kafka_AclBinding_destroy(*binding));
        });
        asked.context("grant")
    }

    /// Sets a user's password for both SCRAM mechanisms. The brokers hear of it within moments.
    pub fn set_password(&self, user: &str, password: &str) -> anyhow::Result<()> {
        use c::rd_kafka_ScramMechanism_t as Mechanism;
        let name = CString::new(user)?;
        let mechanisms = [Mechanism::RD_KAFKA_SCRAM_MECHANISM_SHA_256, Mechanism::RD_KAFKA_SCRAM_MECHANISM_SHA_512];
        // One request changes a user once.
        for mechanism in mechanisms {
            // SAFETY: name and password are alive and are copied; without a salt the library draws one.
            let mut change = unsafe {
                let (bytes, length) = (password.as_ptr(), password.len());
                let salt = (ptr::null(), 0);
                c::rd_kafka_UserScramCredentialUpsertion_new(
                    name.as_ptr(),
                    mechanism,
                    ITERATIONS,
                    bytes,
                    length,
                    salt.0,
                    salt.1,
                )
            };
            // SAFETY: client, queue and change are alive; the request copies the change, which is destroyed here.
            let asked = self.ask(|rk, queue| unsafe {
                c::rd_kafka_AlterUserScramCredentials(rk, &mut change, 1, ptr::null(), queue);
                c::rd_kafka_UserScramCredentialAlteration_destroy(change);
            });
            asked.with_context(|| format!("set the password of user {user}"))?;
        }
        Ok(())
    }

    /// Makes a request, and waits for its answer.
    fn ask(&self, request: impl FnOnce(*mut c::rd_kafka_t, *mut c::rd_kafka_queue_t)) -> anyhow::Result<()> {
        let admin = self.admin()?;
        let rk = admin.inner().native_ptr();
        // SAFETY: the client lives until the end of this function; queue and event are ours, and are destroyed once.
        unsafe {
            let queue = c::rd_kafka_queue_new(rk);
            request(rk, queue);
            let event = c::rd_kafka_queue_poll(queue, DEADLINE.as_millis() as i32);
            let answer = if event.is_null() { Err("no answer".to_owned()) } else { read(event) };
            if !event.is_null() {
                c::rd_kafka_event_destroy(event);
            }
            c::rd_kafka_queue_destroy(queue);
            match answer {
                Ok(()) => Ok(()),
                Err(text) => bail!(text),
            }
        }
    }
}

/// The first error of an answer.
///
/// # Safety
/// A live event of one of the two requests above.
unsafe fn read(event: *mut c::rd_kafka_event_t) -> Result<(), String> {
    // SAFETY: what an event holds lives as long as it; the accessors go by its type.
    unsafe {
        let none = c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
        if c::rd_kafka_event_error(event) != none {
            return Err(CStr::from_ptr(c::rd_kafka_event_error_string(event)).to_string_lossy().into_owned());
        }
        let mut count = 0;
        let errors: Vec<*const c::rd_kafka_error_t> = match c::rd_kafka_event_type(event) {
            c::RD_KAFKA_EVENT_CREATEACLS_RESULT => {
                let results =
                    c::rd_kafka_CreateAcls_result_acls(c::rd_kafka_event_CreateAcls_result(event), &mut count);
                (0..count).map(|i| c::rd_kafka_acl_result_error(*results.add(i))).collect()
            }
            _ => {
                let result = c::rd_kafka_event_AlterUserScramCredentials_result(event);
                let results = c::rd_kafka_AlterUserScramCredentials_result_responses(result, &mut count);
                let error = |i| c::rd_kafka_AlterUserScramCredentials_result_response_error(*results.add(i));
                (0..count).map(error).collect()
            }
        };
        match errors.into_iter().find(|error| !error.is_null() && c::rd_kafka_error_code(*error) != none) {
            Some(error) => Err(CStr::from_ptr(c::rd_kafka_error_string(error)).to_string_lossy().into_owned()),
            None => Ok(()),
        }
    }
}
