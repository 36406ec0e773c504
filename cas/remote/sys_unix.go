//go:build unix

package remote

import "golang.org/x/sys/unix"

// noFollow keeps a link that somebody laid at a part's name from being written through.
const noFollow = unix.O_NOFOLLOW
