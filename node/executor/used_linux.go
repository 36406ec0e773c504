package executor

import (
	"os"
	"time"
)

// tick is the unit of processor time in /proc: 1/USER_HZ, which is the same on all machines.
const tick = 10 * time.Millisecond

// Used says what the tree of each main process takes: by its pid, if it was born at birth. One
// that is gone is left out. A tree is a main process and its descendants; those that ended count
// once their parent has collected them.
func Used(mains map[int]uint64) (map[int]Use, error) {
	all, err := Processes()
	if err != nil {
		return nil, err
	}
	return used(all, mains), nil
}

func used(all []Proc, mains map[int]uint64) map[int]Use {
	parent := map[int]int{}
	for _, p := range all {
		parent[p.PID] = p.PPID
	}
	out := map[int]Use{}
	for _, p := range all {
		if birth, ok := mains[p.PID]; ok && birth == p.Birth {
			out[p.PID] = Use{}
		}
	}
	for _, p := range all {
		for at, depth := p.PID, 0; at > 1 && depth < maxDepth; at, depth = parent[at], depth+1 {
			if u, ok := out[at]; ok {
				u.CPU += time.Duration(p.Ticks) * tick
				u.Memory += p.Pages * int64(os.Getpagesize())
				out[at] = u
				break
			}
		}
	}
	return out
}

// maxDepth bounds a walk to the root of a tree: what was read process by process may, for one
// whose number was taken again meanwhile, lead in a circle.
const maxDepth = 1000
