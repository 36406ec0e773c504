package node

import "golang.org/x/sys/windows"

// freeDisk is what this account may still use, in bytes.
func freeDisk(path string) (int64, error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(p, &free, nil, nil)
	return int64(free), err
}
