package secrets

import "io/fs"

// noWait has no like here.
const noWait = 0

// ownerOf: who may read a file is in its folder's rights here, not in its owner.
func ownerOf(fs.FileInfo) (uid int, mine bool) { return -1, true }
