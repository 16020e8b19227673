//! Clusters of blocks.

/// Blocks of a cluster in each direction; zeros: as the kernel was compiled.
pub type Cluster = [u32; 3];

/// The clusters for which the kernel was compiled.
pub const OWN_CLUSTER: Cluster = [0; 3];

/// Whether a grid consists of whole clusters. Always true for [`OWN_CLUSTER`], which the driver
/// checks.
#[must_use]
pub fn whole_clusters(grid: [u32; 3], cluster: Cluster) -> bool {
    let whole = |(grid, cluster): (&u32, &u32)| *cluster > 0 && grid % cluster == 0;
    cluster == OWN_CLUSTER || grid.iter().zip(&cluster).all(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_divided_in_each_direction() {
        assert!(whole_clusters([5, 3, 1], OWN_CLUSTER));
        assert!(whole_clusters([8, 6, 1], [4, 2, 1]));
        assert!(!whole_clusters([8, 3, 1], [4, 2, 1]));
        assert!(!whole_clusters([8, 6, 1], [4, 0, 1]));
    }
}
