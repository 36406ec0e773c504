package consensus

import "hash/fnv"

// A state hash as it travels:
//
//	0                            24            32
//	┌────────────────────────────┬─────────────┐
//	│ first 24 bytes of FSM.Hash │ stamp 8     │   stamp = FNV-1a 64 of Config.StateVersion
//	└────────────────────────────┴─────────────┘
//
// Programs that encode the same state differently differ in their hashes and in nothing
// else, so two hashes compare only under one stamp; otherwise a node that was upgraded
// would throw its state away. Without a StateVersion the hash is whole and always compares.
const stampAt = 24

type stamper struct {
	on    bool
	stamp [32 - stampAt]byte
}

func newStamper(version string) stamper {
	if version == "" {
		return stamper{}
	}
	h := fnv.New64a()
	h.Write([]byte(version)) // a hash.Hash never fails
	s := stamper{on: true}
	copy(s.stamp[:], h.Sum(nil))
	return s
}

func (s stamper) put(hash [32]byte) [32]byte {
	if s.on {
		copy(hash[stampAt:], s.stamp[:])
	}
	return hash
}

// compares reports whether a hash from elsewhere may be held against one of ours.
func (s stamper) compares(hash [32]byte) bool {
	return !s.on || [32 - stampAt]byte(hash[stampAt:]) == s.stamp
}
