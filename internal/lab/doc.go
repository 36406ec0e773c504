// Package lab makes several machines out of one, for tests of the real programs: each
// has a network of its own behind a cable that can be cut, slowed and shaken, a disk of
// its own that can be filled and can lose its power, and a wall clock of its own that
// can be wrong. The programs that run on them are the product's, unchanged, and so is
// the kernel below them.
//
// What is made of what:
//
//	a machine   a network namespace with one TAP interface and an address
//	the cable   this process: a switch that reads each TAP and writes to the others, with
//	            delay, jitter and loss drawn from a seed, and links that are down
//	one-way cut nftables in the receiver's namespace: the kernel itself drops what comes
//	            from one sender, and the way back stays open
//	thin link   a token bucket (tbf) on the sender's interface
//	disk        an ext4 of bounded size on a loop device. Power is cut by the file
//	            system's own shutdown call, which drops all that was not synced
//	wall clock  eight bytes in the vDSO of a process: its clock_gettime adds them to
//	            CLOCK_REALTIME. The clocks that deadlines count on are not touched, and
//	            children of the process see true time
//	pause       SIGSTOP to a process and to all that descends from it
//
// It needs root, iproute2, nftables and e2fsprogs on Linux; Refused says what is
// lacking. Wall clocks need amd64, and WallRefused says so elsewhere.
//
// Everything made is written down first, in /run/forgeyard-lab, with this process's pid
// and birth time, and is removed by Close. What a process that was killed has left is
// removed when the next Lab is made. Daemons end with the process that started them.
//
// It knows nothing of the product.
//
// Goroutines: one reads each TAP; one timer for each frame that is under way; one for
// each process started, locked to a thread that stands in the machine's namespace and
// lives as long as the process, because the kernel sends the parent-death signal when
// that thread ends.
package lab
