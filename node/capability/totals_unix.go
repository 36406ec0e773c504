//go:build linux || darwin

package capability

import (
	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

// diskTotal is the size of the filesystem under dir: free space is usage, and changes.
func diskTotal(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, forgeyard.Errorf("probe disk", forgeyard.NotFound, "%s: %w", dir, err)
	}
	return int64(st.Blocks) * int64(st.Bsize), nil
}
