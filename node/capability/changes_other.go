//go:build !linux

package capability

import "context"

// Changes is nil: no notice of hardware is read here.
func Changes(context.Context) <-chan struct{} { return nil }
