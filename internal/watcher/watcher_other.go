//go:build !linux

package watcher

import (
	"errors"
	"time"
)

func setter() (func(time.Duration) error, error) { return nil, errors.ErrUnsupported }
