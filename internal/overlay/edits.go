package main

// knownMinor is the Go release whose runtime the edits were read against. Its patch
// releases are tried, and refused if one of the texts is not there.
const knownMinor = "1.26"

// edit replaces a text of the runtime that is there once.
type edit struct{ old, new string }

// file is what happens to one file of the standard library, most of them of its runtime.
type file struct {
	name  string // below src/
	edits []edit
	tail  string // appended
}

// The same chances in each process: what is drawn before a bubble seeds itself.
const fixedStart = `	seed := &globalRand.seed
	startupRand = nil
	for i := range seed {
		seed[i] = byte(i + 1)
	}
	globalRand.state.Init(*seed)
	globalRand.init = true
	unlock(&globalRand.lock)
	return
`

// simNext is splitmix64: one word of state, every value once, no allocation.
const simRand = `
var (
	simOn    bool
	simState uint64
)

//go:nosplit
func simNext() uint64 {
	simState += 0x9e3779b97f4a7c15
	z := simState
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// simDraws reports whether the running goroutine is in a bubble that was seeded.
//
//go:nosplit
func simDraws() bool {
	if !simOn {
		return false
	}
	gp := getg().m.curg
	return gp != nil && gp.bubble != nil
}

//go:nosplit
func simRandn(n uint32) uint32 {
	if simDraws() {
		return uint32((uint64(uint32(simNext())) * uint64(n)) >> 32)
	}
	return cheaprandn(n)
}

//go:linkname simSeed sim.seedRuntime
func simSeed(on bool, seed uint64) { simOn, simState = on, seed }
`

// The children of a context in the order of their birth: by the addresses of more than
// eight, a map yields them in another order in each process.
const simChildren = `
var simBorn atomic.Uint64

func simOrdered(m map[canceler]uint64) []canceler {
	out := make([]canceler, 0, len(m))
	for c := range m {
		i := len(out)
		out = append(out, c)
		for ; i > 0 && m[out[i-1]] > m[c]; i-- {
			out[i] = out[i-1]
		}
		out[i] = c
	}
	return out
}
`

var files = []file{
	{name: "context/context.go", tail: simChildren, edits: []edit{
		{"\tchildren map[canceler]struct{} ", "\tchildren map[canceler]uint64 "},
		{"p.children = make(map[canceler]struct{})", "p.children = make(map[canceler]uint64)"},
		{"p.children[child] = struct{}{}", "p.children[child] = simBorn.Add(1)"},
		{"for child := range c.children {", "for _, child := range simOrdered(c.children) {"},
	}},
	{name: "runtime/rand.go", tail: simRand, edits: []edit{
		{"\tseed := &globalRand.seed\n", fixedStart},
		{"func rand() uint64 {\n", "func rand() uint64 {\n\tif simDraws() {\n\t\treturn simNext()\n\t}\n"},
	}},
	// Which of several ready cases a select takes.
	{name: "runtime/select.go", edits: []edit{
		{"cheaprandn(uint32(norder + 1))", "simRandn(uint32(norder + 1))"},
	}},
	// Which of several timers of one instant fires first. A timer is put into a
	// bubble's heap by a goroutine of it or by the scheduler on its behalf.
	{name: "runtime/time.go", edits: []edit{
		{"\t\t\tt.rand = cheaprand()\n", "\t\t\tif simOn {\n\t\t\t\tt.rand = uint32(simNext())\n\t\t\t} else {\n\t\t\t\tt.rand = cheaprand()\n\t\t\t}\n"},
	}},
	// A mutex that somebody waited for over a millisecond of real time is handed over in
	// another order: here nobody waits long.
	{name: "runtime/sema.go", edits: []edit{
		{"func internal_sync_nanotime() int64 {\n", "func internal_sync_nanotime() int64 {\n\tif simOn {\n\t\treturn 1\n\t}\n"},
	}},
	// Every 61st turn the scheduler looks at what all processors share first; how many turns
	// there were depends on the collector, and so on real time.
	{name: "runtime/proc.go", edits: []edit{
		{"const haveSysmon = GOARCH != \"wasm\"", "const haveSysmon = false"},
		{"if pp.schedtick%61 == 0 && !sched.runq.empty() {", "if !simOn && pp.schedtick%61 == 0 && !sched.runq.empty() {"},
	}},
	// A collection empties the pools of package sync, and what is made anew instead of taken
	// out of one may draw: when garbage is collected must not be seen.
	{name: "runtime/mgc.go", edits: []edit{
		{"\tif poolcleanup != nil {\n", "\tif poolcleanup != nil && !simOn {\n"},
	}},
	// Hashes of map keys, the same on every 64-bit machine.
	{name: "runtime/alg.go", edits: []edit{
		{"func alginit() {\n", "func alginit() {\n\tfor i := range hashkey {\n\t\thashkey[i] = uintptr(bootstrapRand())\n\t}\n\treturn\n"},
	}},
}
