package node

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Place implements Platform (site.Register.Place): the boot, the file whose lock it
// holds, and the processes that it can see. Whoever has the lock of the same file in the
// same boot comes after the process that had it before, and what that one left running was
// found by its pid and is dead. A copied data dir has another file. After a reboot the lock
// proves nothing: a disk may be in another machine, and a virtual machine may have been
// started again elsewhere while the first one, cut off, still runs.
func (native) Place(lock *os.File, boot string) forgeyard.Digest {
	var st unix.Stat_t
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || boot == "" || unix.Fstat(int(lock.Fd()), &st) != nil {
		return forgeyard.Digest{} // nothing is proved
	}
	return cas.Sum(fmt.Appendf(nil, "place\n%s\n%d:%d\n%s\n", boot, st.Dev, st.Ino, pids))
}
