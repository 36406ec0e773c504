package arch

// reasons are what may exceed its budget, and why dividing it would make it worse.
// An entry that is no longer needed fails the test.
//
// Keys: "dir: Function", "dir: (*Type).Method", "dir/file.go", "dir/".
var reasons = map[string]string{}
