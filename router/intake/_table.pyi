from router.intake.plain_table import Table as Table
