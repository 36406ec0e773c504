//go:build !unix

package capture

import "os"

const noFollow, nonBlock = 0, 0

// links: the platform does not say cheaply.
func links(os.FileInfo) uint64 { return 0 }

// syncDir: the platform makes names durable by itself.
func syncDir(string) error { return nil }
