package capability

import (
	"runtime"

	"golang.org/x/sys/windows"

	"github.com/forgeyard/forgeyard-node"
)

// totals is not tested on this platform; memory stays unknown, so nothing that asks for
// memory is placed here.
func totals(dir string) (Totals, error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return Totals{}, forgeyard.E("probe disk", forgeyard.Invalid, err)
	}
	var total uint64
	if err := windows.GetDiskFreeSpaceEx(p, nil, &total, nil); err != nil {
		return Totals{}, forgeyard.Errorf("probe disk", forgeyard.NotFound, "%s: %w", dir, err)
	}
	return Totals{MilliCPU: int64(runtime.NumCPU()) * 1000, Disk: int64(total)}, nil
}
