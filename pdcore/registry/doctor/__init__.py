"""What is wrong with a store, or will be: reads its condition, tries it, and judges both. Verdicts are pure."""
