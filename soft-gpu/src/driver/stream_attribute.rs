//! Attributes of streams. They are hints, which are stored and have no effect.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;

use super::error::Result;
use super::stream::{PRIORITIES, Stream};
use super::sync::lock;

/// Numbers in CUstreamAttrID: access policy window, synchronisation policy, priority, and two
/// attributes of memory synchronisation domains.
const ATTRIBUTES: [u32; 5] = [1, 3, 8, 9, 10];

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
            3 => value[0] = u32::MAX,
            8 => value[0] = self.priority as u32,
            9 => value[0] = 1 << 8,
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
            // CUaccessPolicyWindow: the ratio, and the properties of hits (0 to 2) and misses.
            // Misses cannot be persisting.
            1 => (0.0..=1.0).contains(&f32::from_bits(value[4])) && value[5] <= 2 && value[6] <= 1,
            3 => (1..=4).contains(&value[0]),
            8 => (PRIORITIES.1..=PRIORITIES.0).contains(&(value[0] as i32)),
            10 => value[0] <= 1,
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
