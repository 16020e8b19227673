//! User objects. A program attaches them to graphs. The release of the last reference destroys the
//! object.

use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;

use super::Graph;
use crate::driver::callback::HostCall;
use crate::driver::error::Result;
use crate::driver::handle::{Kind, Table};
use crate::driver::healthy;
use crate::driver::sync::lock;

/// A user object.
pub struct Object {
    handle: u64,
    destroy: HostCall,
    references: Mutex<u64>,
}

static OBJECTS: Table<Object> = Table::new(Kind::UserObject);

/// cuUserObjectCreate. The program owns `references` references.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for 0 references.
pub fn create(destroy: HostCall, references: u32) -> Result<u64> {
    healthy()?;
    if references == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let made = OBJECTS.insert(|handle| {
        Arc::new(Object {
            handle,
            destroy,
            references: Mutex::new(references.into()),
        })
    });
    Ok(made.handle)
}

fn get(handle: u64) -> Result<Arc<Object>> {
    healthy()?;
    OBJECTS.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

impl Object {
    fn retain(&self, count: u64) {
        *lock(&self.references) += count;
    }

    /// Releases references. The last release destroys the object, on a thread of the driver.
    fn release(&self, count: u64) -> Result {
        let mut references = lock(&self.references);
        *references = references
            .checked_sub(count)
            .ok_or(CuResult::INVALID_VALUE)?;
        if *references > 0 {
            return Ok(());
        }
        drop(references);
        let _ = OBJECTS.remove(self.handle);
        let destroy = self.destroy;
        let spawned = std::thread::Builder::new()
            .name("soft-gpu object".to_owned())
            .spawn(move || destroy.run());
        if spawned.is_err() {
            destroy.run();
        }
        Ok(())
    }
}

/// cuUserObjectRetain.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: unknown object, or a count of 0.
pub fn retain(handle: u64, count: u32) -> Result {
    let object = get(handle)?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    object.retain(count.into());
    Ok(())
}

/// cuUserObjectRelease.
///
/// # Errors
/// As [`retain`]; a count above the number of references.
pub fn release(handle: u64, count: u32) -> Result {
    let object = get(handle)?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    object.release(count.into())
}

/// References that a graph or an instance holds. Dropping this value releases them.
pub struct Held {
    object: Arc<Object>,
    count: u64,
}

impl Held {
    /// Takes one more reference, for another owner.
    pub fn share(&self) -> Held {
        self.object.retain(1);
        Held {
            object: Arc::clone(&self.object),
            count: 1,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.object.release(self.count);
    }
}

/// cuGraphRetainUserObject. If `moved`, references of the caller become references of the graph.
///
/// # Errors
/// As [`retain`].
pub fn retain_by(graph: &Graph, handle: u64, count: u32, moved: bool) -> Result {
    let object = get(handle)?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if !moved {
        object.retain(count.into());
    }
    graph.lock().objects.push(Held {
        object,
        count: count.into(),
    });
    Ok(())
}

/// cuGraphReleaseUserObject.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for more references than the graph holds.
pub fn release_by(graph: &Graph, handle: u64, count: u32) -> Result {
    get(handle)?;
    let mut left = u64::from(count);
    let mut gone = Vec::new();
    let mut body = graph.lock();
    let held = |h: &&mut Held| h.object.handle == handle;
    let total: u64 = body.objects.iter_mut().filter(held).map(|h| h.count).sum();
    if left == 0 || total < left {
        return Err(CuResult::INVALID_VALUE);
    }
    for h in body.objects.iter_mut().filter(held) {
        let taken = h.count.min(left);
        h.count -= taken;
        left -= taken;
        gone.push(Held {
            object: Arc::clone(&h.object),
            count: taken,
        });
    }
    body.objects.retain(|h| h.count > 0);
    drop(body);
    drop(gone); // Without the lock: the release may call a function of the program.
    Ok(())
}
