//! Attributes of streams. They are hints, which are stored and have no effect.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::launch_attribute::{
    ACCESS_POLICY_WINDOW, MEM_SYNC_DOMAIN, MEM_SYNC_DOMAIN_MAP, PRIORITY, SYNCHRONIZATION_POLICY,
};
use vgpu_cuda_abi::numbers::{access_property, sync_policy};

use super::error::Result;
use super::stream::{PRIORITIES, Stream};
use super::sync::lock;

/// The attributes that streams have (`CUstreamAttrID`).
const ATTRIBUTES: [u32; 5] = [
    ACCESS_POLICY_WINDOW,
    SYNCHRONIZATION_POLICY,
    PRIORITY,
    MEM_SYNC_DOMAIN_MAP,
    MEM_SYNC_DOMAIN,
];

/// Values (CUstreamAttrValue) of the attributes that the program set, by number.
#[derive(Debug, Default)]
pub(super) struct Attributes(Mutex<BTreeMap<u32, [u32; 16]>>);

impl Stream {
    /// cuStreamGetAttribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an attribute that streams do not have.
    pub fn attribute(&self, id: u32) -> Result<[u32; 16]> {
        if !ATTRIBUTES.contains(&id) {
            return Err(CuResult::INVALID_VALUE);
        }
        let set = lock(&self.attributes.0).get(&id).copied();
        let mut value = [0; 16];
        match id {
            // Hardware reports all ones if no synchronisation policy was set.
            SYNCHRONIZATION_POLICY => value[0] = u32::MAX,
            PRIORITY => value[0] = self.priority as u32,
            MEM_SYNC_DOMAIN_MAP => value[0] = 1 << 8,
            _ => {}
        }
        Ok(set.unwrap_or(value))
    }

    /// cuStreamSetAttribute: stores a hint.
    ///
    /// # Errors
    /// As [`attribute`](Self::attribute); CUDA_ERROR_INVALID_VALUE for an invalid value.
    pub fn set_attribute(&self, id: u32, value: [u32; 16]) -> Result {
        self.attribute(id)?;
        let fits = match id {
            // CUaccessPolicyWindow: the ratio, and the properties of hits and misses. Misses cannot
            // be persisting.
            ACCESS_POLICY_WINDOW => {
                (0.0..=1.0).contains(&f32::from_bits(value[4]))
                    && value[5] <= access_property::PERSISTING
                    && value[6] <= access_property::STREAMING
            }
            SYNCHRONIZATION_POLICY => {
                (sync_policy::AUTO..=sync_policy::BLOCKING_SYNC).contains(&value[0])
            }
            PRIORITY => (PRIORITIES.1..=PRIORITIES.0).contains(&(value[0] as i32)),
            MEM_SYNC_DOMAIN => value[0] <= 1,
            _ => true,
        };
        if !fits {
            return Err(CuResult::INVALID_VALUE);
        }
        lock(&self.attributes.0).insert(id, value);
        Ok(())
    }

    /// cuStreamCopyAttributes.
    pub fn copy_attributes(&self, from: &Stream) {
        let theirs = lock(&from.attributes.0).clone();
        *lock(&self.attributes.0) = theirs;
    }
}
