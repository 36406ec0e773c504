package remote

// noFollow has no like here; links need a right that others do not have.
const noFollow = 0
